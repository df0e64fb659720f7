"""The rules, applied to a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from caldera.base.plain_data import to_plain
from caldera.base.registry import nearest
from caldera.bench.honesty import more_rules, rules
from caldera.bench.honesty.claims import Claims, claims_of, claims_of_bench, is_bench
from caldera.bench.honesty.rules import FINE, NOT_SHOWN, VIOLATED, RuleVerdict
from caldera.errors import ConfigError, DataError

Rule = Callable[[Claims], RuleVerdict]

RULES: Mapping[str, tuple[str, Rule]] = {
    "scaled accuracy": ("accuracy ignored while scaling", rules.accuracy_when_scaling),
    "test accuracy": ("no test accuracy", rules.test_accuracy),
    "tuning": ("tuning runs not counted", rules.tuning_counted),
    "hardware": ("old against special hardware", rules.equal_hardware),
    "whole": ("kernels or subsets only", rules.whole_workload),
    "input": ("no I/O", rules.input_counted),
    "time": ("rates instead of time", more_rules.time_beside_rates),
    "options": ("speed and accuracy from different options", more_rules.same_options),
    "inputs' size": ("inflated inputs", more_rules.usual_inputs),
    "end": ("fixed wall time", more_rules.ends_by_work),
    "scaling": ("weak or strong scaling redefined by mini-batch", more_rules.honest_scaling),
    "both": ("only time, or only accuracy", more_rules.both_compared),
    "peers": ("peers that crashed or were left out", more_rules.all_peers),
    "seeds": ("one seed only", more_rules.several_seeds),
    "workload": ("a network under the name of another", more_rules.named_network),
}
"""The ways to fool the masses by short name, each with its rule."""


@dataclass(frozen=True)
class Findings:
    """The verdict of each rule on a report.

    >>> run = {"name": "a", "system": "ours", "workload": "mlp", "level": "network"}
    >>> found = check({"title": "t", "runs": [run]})
    >>> found.passes, found["hardware"].sentence
    (False, 'Name the hardware of every run.')
    """

    title: str
    verdicts: tuple[RuleVerdict, ...]

    @property
    def passes(self) -> bool:
        """True if the report keeps all rules."""
        return all(each.passes for each in self.verdicts)

    def __getitem__(self, rule: str) -> RuleVerdict:
        for each in self.verdicts:
            if each.rule == rule:
                return each
        raise ConfigError.build(
            "findings", expected="a rule", got=repr(rule), hint=nearest(str(rule), RULES)
        )

    def count(self, status: str) -> int:
        """Return the number of rules with this status."""
        return sum(each.status == status for each in self.verdicts)

    def __str__(self) -> str:
        lines = [self.title]
        for each in self.verdicts:
            lines.append(f"  {each.number:>2}  {each.status:<9}  {each.way}: {each.why}")
            if each.sentence:
                lines.append(f"      {'':<9}  -> {each.sentence}")
        counts = ", ".join(f"{self.count(each)} {each}" for each in (FINE, VIOLATED, NOT_SHOWN))
        return "\n".join([*lines, counts])


def check(report: str | PathLike[str] | Mapping[str, Any] | Claims) -> Findings:
    """Check a report for ways to fool the masses.

    The report is a file, the content of such a file, or `Claims`. Files are written by `caldera
    bench --json` or by other programs in the format of `Claims`.

    >>> from caldera.bench.honesty import Hardware, Run
    >>> run = Run("a", "ours", "mlp", "network", part="whole", seconds=(0.1,), seconds_of="step",
    ...           hardware=Hardware("a laptop", reported="Intel Core"), options={},
    ...           equal_results=True, input_shape=(784,), usual_shape=(784,))
    >>> check(Claims("a step", (run,))).passes
    True
    """
    if isinstance(report, Claims):
        claims = claims_of(to_plain(report), "report")
    elif isinstance(report, Mapping):
        claims = _claims(dict(report), "report")
    elif isinstance(report, str | PathLike):
        claims = _claims(read_json(Path(report)), Path(report).name)
    else:
        raise ConfigError.build(
            "bench.check", expected="a file, a dict or Claims", got=type(report).__name__
        )
    _check_statements(claims)
    # A run without a result cannot be judged by the remaining rules.
    measured = replace(claims, runs=tuple(run for run in claims.runs if not run.error))
    given = dict.fromkeys(RULES, measured) | {"peers": claims}
    verdicts = [
        replace(_excused(rule(given[name]), name, claims), number=number, rule=name, way=way)
        for number, (name, (way, rule)) in enumerate(RULES.items(), start=1)
    ]
    return Findings(claims.title, tuple(verdicts))


def _excused(verdict: RuleVerdict, name: str, claims: Claims) -> RuleVerdict:
    """Accept a statement of the report if its numbers do not contradict it."""
    sentence = (claims.statements or {}).get(name, "").strip()
    return RuleVerdict(FINE, f"quoted: {sentence}") if sentence and verdict.excusable else verdict


def _check_statements(claims: Claims) -> None:
    for name in claims.statements or {}:
        if name not in RULES:
            raise DataError.build(
                "statements", expected="names of rules", got=repr(name), hint=nearest(name, RULES)
            )


def _claims(content: Any, where: str) -> Claims:
    if is_bench(content):
        content = to_plain(claims_of_bench(content, where))
    return claims_of(content, where)


def read_json(path: Path) -> Any:
    """Return the content of a file of results."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError.build(f"check {path}", expected="a file of results", got=reason) from None
    except (ValueError, RecursionError):
        raise DataError.build(
            f"check {path}",
            expected="JSON",
            got="something else",
            hint="caldera bench --json writes such a file",
        ) from None
