"""Results of a benchmark run, and the machine and software that produced them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import caldera
from caldera.base.children import run_program
from caldera.base.machine import CardState, card_state, this_machine
from caldera.bench.contestants import PEERS, has_compiler
from caldera.bench.equality import Equality, is_as_strict
from caldera.bench.statistics import Estimate, mean_ratio_of, median_of, ratio_of, summed

_PACKAGES = ("caldera", "numpy", "llvmlite", "scipy", "jaxlib", "triton", *PEERS)
_TIME = "%Y-%m-%d %H:%M:%S %z"


def machine_facts(threads: int, device: str = "cpu") -> dict[str, Any]:
    """Return facts about the machine: processor, cores, threads, BLAS, Python, system, and GPU."""
    here = this_machine()
    card = None if device == "cpu" else card_state()
    return {
        "time": time.strftime(_TIME),
        "cpu": here.cpu,
        "architecture": here.architecture,
        "cores": here.cores,
        "threads": threads,
        "load before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": here.system,
        "python": here.libraries["python"],
        "blas": here.libraries["blas"],
        "C++ compiler": has_compiler(),
        "device": device,
        **({} if card is None else _card_facts(card)),
    }


def _card_facts(card: CardState) -> dict[str, Any]:
    return {
        "card": card.name,
        "card driver": card.driver,
        "card capability": card.capability,
        "card memory": card.total,
        "card memory in use before": card.used,
    }


def package_versions() -> dict[str, str]:
    """Return the packages that take part, as far as they are installed.

    >>> "numpy" in package_versions()
    True
    """
    found = {"caldera": caldera.__version__}
    for package in _PACKAGES:
        try:
            found.setdefault(package, version(package))
        except PackageNotFoundError:
            continue
    return found


@cache
def code_version() -> dict[str, str]:
    """Caldera's version, digests of its sources and kernels, and the commit in a clone of git.

    >>> sorted(code_version())[-3:]
    ['kernels', 'sources', 'version']
    """
    root = Path(caldera.__file__).parent
    found = {"version": caldera.__version__, "sources": sources_digest(root)}
    found["kernels"] = kernels_digest()
    asked = run_program("git", "-C", str(root), "rev-parse", "HEAD", seconds=10)
    if asked is not None and not asked.returncode:
        found["commit"] = asked.stdout.decode().strip()
    return found


@cache
def kernels_digest() -> str:
    """Return the digest of the kernels of this package, with their CUDA headers."""
    return sources_digest(Path(caldera.__file__).parent / "kernels", "*.py", "*.cuh")


def sources_digest(package: Path, *patterns: str) -> str:
    """Return one digest of all Python files of a package, or of its files of other patterns."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(found for each in patterns or ("*.py",) for found in package.rglob(each)):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


FORMAT = "caldera bench 2"
OURS = "caldera"
ANY = "best"
"""The name of the comparison with the best of all peers."""


@dataclass
class ResultEntry:
    """Result of a contestant in a case."""

    work: str
    case: str
    framework: str
    setting: str
    precision: str = ""
    """Precision on a GPU, and on the CPU if it is not float32."""
    part_of: str = ""
    group: str = ""
    depth: int = 0
    flops: float = 0.0
    batch: int = 0
    """Samples of a step."""
    images: bool = False
    """True if the samples are images."""
    rounds: list[list[float]] = field(default_factory=list)
    """Seconds a step, of every round."""
    cpu_rounds: list[list[float]] = field(default_factory=list)
    """CPU seconds of the process per step, of every round."""
    lost: list[float] = field(default_factory=list)
    """The share of its cores' time that others had, of every turn."""
    first_cold_s: float | None = None
    first_warm_s: list[float] = field(default_factory=list)
    import_s: float | None = None
    peak_bytes: int = 0
    growth_bytes: int = 0
    """Growth of memory from the import of the framework to the peak."""
    card_peak_bytes: int = 0
    """Peak of GPU memory in use, as counted by the framework."""
    card_bytes: int = 0
    """GPU memory of the whole process, as counted by the GPU's driver."""
    loss: float | None = None
    """Loss after `loss_steps` steps from the initial weights."""
    loss_steps: int = 0
    loss_mean_of: int = 0
    """Number of last steps of which the loss is the mean; 0 if it is the last step's loss."""
    accuracy: float | None = None
    """Test accuracy, if it was measured."""
    level: str = ""
    """operator, network, training or distributed."""
    shape: list[int] = field(default_factory=list)
    """Shape of a sample."""
    ranks: int = 1
    scheme: str = ""
    """Communication scheme of the ranks."""
    target: float | None = None
    """The test accuracy that a training ends with."""
    seeds: list[int] = field(default_factory=list)
    """Seed of each training."""
    accuracies: list[float] = field(default_factory=list)
    """Test accuracy of each training."""
    trainings: list[dict[str, Any]] = field(default_factory=list)
    """Measurements of each training, with every sample."""
    weights: dict[str, int] = field(default_factory=dict)
    """Number of weights of a network by shape, as its gradients have them."""
    equality: Equality = field(default_factory=Equality)
    error: str = ""

    @property
    def label(self) -> str:
        """Framework, setting and precision."""
        return f"{self.framework} {self.way}"

    @property
    def way(self) -> str:
        """Setting and precision."""
        return f"{self.setting}, {self.precision}" if self.precision else self.setting

    @property
    def counts(self) -> bool:
        """True if there is a result that is not known to be wrong."""
        return bool(self.rounds) and not self.error and self.equality.holds is not False

    def add_times(
        self,
        wall: list[float],
        cpu: list[float] | None = None,
        lost: float | None = None,
        *,
        new_round: bool = True,
    ) -> None:
        """Add the times of a turn, as a new round or as part of the last one."""
        for rounds, times in ((self.rounds, wall), (self.cpu_rounds, cpu)):
            if times and new_round:
                rounds.append(list(times))
            elif times:
                rounds[-1] += times
        if lost is not None:
            self.lost.append(lost)

    def seconds(self) -> Estimate | None:
        """Return median time of a step, with its interval."""
        return median_of(self.rounds) if self.rounds else None


@dataclass(frozen=True)
class Ratio:
    """Speedup of Caldera over a peer's best setting."""

    peer: str
    """A framework, or `ANY`."""
    against: str
    """Setting of the peer."""
    ratio: Estimate


@dataclass(frozen=True)
class Mean:
    """The geometric mean of ratios over the cases of a group."""

    work: str
    group: str
    setting: str
    peer: str
    cases: int
    ratio: Estimate


@dataclass
class Report:
    """A whole run."""

    machine: dict[str, Any]
    options: dict[str, Any]
    missing: dict[str, str]
    """Peers that are not installed, and how to install them."""
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    entries: list[ResultEntry] = field(default_factory=list)
    code: dict[str, str] = field(default_factory=dict)
    """Version of the measured code."""
    stopped: bool = False
    """True if the run was interrupted."""

    def cases(self, work: str) -> dict[str, list[ResultEntry]]:
        """Return the entries of a work by case."""
        found: dict[str, list[ResultEntry]] = {}
        for entry in self.entries:
            if entry.work == work:
                found.setdefault(entry.case, []).append(entry)
        return found

    def works(self) -> list[str]:
        """Return the names of the work that was measured."""
        return list(dict.fromkeys(entry.work for entry in self.entries))

    def ratios(self, entry: ResultEntry) -> list[Ratio]:
        """Compare an entry of Caldera with the best setting of each peer, and of all peers.

        Only settings of the same precision or a stricter one are compared: a user whose fastest
        setting is float32 would not use tf32.
        """
        if entry.framework != OURS or not entry.counts:
            return []
        rivals = [
            each
            for each in self.cases(entry.work)[entry.case]
            if each.framework != OURS and is_as_strict(each.precision, entry.precision)
        ]
        return [
            Ratio(peer, best.label, ratio_of(entry.rounds, best.rounds))
            for peer, best in _best_by_peer(rivals).items()
        ]

    def means(self) -> list[Mean]:
        """Return geometric means over groups of cases; cases with the same `part_of` are summed
        first.
        """
        named = sorted(
            (entry for entry in self.entries if entry.group),
            key=lambda entry: self.works().index(entry.work),
        )
        pairs = dict.fromkeys((entry.work, entry.group) for entry in named)
        return [
            mean
            for work, group in pairs
            for mean in self._group_means(
                work, group, [e for e in named if (e.work, e.group) == (work, group)]
            )
        ]

    def _group_means(self, work: str, group: str, members: list[ResultEntry]) -> list[Mean]:
        wholes: dict[str, list[ResultEntry]] = {}
        for entry in members:
            wholes.setdefault(entry.part_of or entry.case, []).append(entry)
        if len(wholes) < 2:
            return []
        settings = dict.fromkeys(e.setting for e in members if e.framework == OURS)
        found = []
        for setting in settings:
            pairs: dict[str, list[Any]] = {}
            for whole in wholes.values():
                totals = _totals(whole)
                ours = next(
                    (e for e in totals if e.framework == OURS and e.setting == setting), None
                )
                if ours is None:
                    continue
                rivals = [each for each in totals if each.framework != OURS]
                for peer, best in _best_by_peer(rivals).items():
                    pairs.setdefault(peer, []).append((ours.rounds, best.rounds))
            found += [
                Mean(work, group, setting, peer, len(each), mean_ratio_of(each))
                for peer, each in pairs.items()
            ]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the whole report, with the statistics and the raw times."""
        entries = []
        for entry in self.entries:
            seconds = entry.seconds()
            entries.append(
                asdict(entry)
                | {
                    "label": entry.label,
                    "counts": entry.counts,
                    "seconds": asdict(seconds) if seconds else None,
                    "ratios": [asdict(each) for each in self.ratios(entry)],
                    "equality": asdict(entry.equality) | {"holds": entry.equality.holds},
                }
            )
        return {
            "format": FORMAT,
            "code": self.code,
            "machine": self.machine,
            "versions": self.versions,
            "options": self.options,
            "missing": self.missing,
            "notes": self.notes,
            "stopped": self.stopped,
            "entries": entries,
            "means": [asdict(each) for each in self.means()],
        }


def _best_by_peer(rivals: Iterable[ResultEntry]) -> dict[str, ResultEntry]:
    """Return the fastest entry that counts, of each peer and of all."""
    found: dict[str, ResultEntry] = {}
    for rival in rivals:
        if not rival.counts:
            continue
        for peer in (rival.framework, ANY):
            if peer not in found or _median(rival) < _median(found[peer]):
                found[peer] = rival
    if len(found) == 2:
        # There is one peer, and it is the best of all.
        del found[ANY]
    return found


def _median(entry: ResultEntry) -> float:
    found = entry.seconds()
    return found.value if found else float("inf")


def _totals(whole: list[ResultEntry]) -> list[ResultEntry]:
    """Sum the entries of the cases of a whole by contestant, if no entry is missing."""
    cases = {entry.case for entry in whole}
    found = []
    for label in dict.fromkeys(entry.label for entry in whole):
        parts = [entry for entry in whole if entry.label == label]
        if len(parts) == len(cases) and all(part.counts for part in parts):
            first = parts[0]
            rounds = summed([part.rounds for part in parts])
            found.append(
                ResultEntry(
                    first.work, first.part_of, first.framework, first.setting, rounds=rounds
                )
            )
    return found
