"""`python -m tools.opinfo [NAME ...]`: Caldera against PyTorch, on PyTorch's own samples.

PyTorch keeps a database of its operators, with sample inputs for each (OpInfo). For every operator
that Caldera has under some name (`tools/opinfo_names.py`), values and gradients are compared in
float32 and float64, and a table is printed in Markdown. A sample that needs what Caldera has no
counterpart for is counted as not expressed, with the reason. The exit status is 1 if something
differs that is not a known convention. It needs `pip install torch expecttest`; nothing else does.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import caldera as cd
from caldera import op
from caldera.errors import CalderaError
from tools.opinfo_forms import NotExpressed
from tools.opinfo_names import CONVENTIONS, FIRST_OUTPUTS, SYMMETRIC, UP_TO_SIGN, form

TOLERANCES = {"float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7)}
"""rtol and atol of a dtype, those of `torch.testing.assert_close`."""


@dataclass
class Row:
    """What was found about one operator."""

    name: str
    samples: int = 0
    values: int = 0
    gradients: int = 0
    compared_gradients: int = 0
    not_expressed: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def line(self) -> str:
        """As a line of the table."""
        first = self.differences[0].replace("|", "\\|") if self.differences else ""
        gradients = (
            f"{self.gradients} of {self.compared_gradients}" if self.compared_gradients else ""
        )
        differs = f"{len(self.differences)}: {first}" if self.differences else ""
        expressed = sum(self.not_expressed.values()) or ""
        return (
            f"| {self.name} | {self.samples} | {self.values} | {gradients} | {expressed} "
            f"| {differs} |"
        )


class Converter:
    """PyTorch's arguments as Caldera's: tensors with a gradient as variables, others as arrays."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.theirs: list[Any] = []
        self.ours: list[Any] = []

    def __call__(self, value: Any) -> Any:
        torch = self.torch
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.dtype):
            return str(value).removeprefix("torch.")
        if isinstance(value, torch.Size):
            return tuple(value)
        if isinstance(value, list | tuple):
            return type(value)(map(self, value))
        return value

    def _tensor(self, value: Any) -> Any:
        if value.dtype == self.torch.bfloat16:
            raise NotExpressed("bfloat16")
        # What is a view in PyTorch is a copy here: NumPy would keep strides of 0.
        array = np.array(value.resolve_conj().numpy(force=True), order="C")
        if array.dtype.kind not in "fc":
            return array
        variable = op.var(f"x{len(self.ours)}", array.shape, fill=array, dtype=str(array.dtype))
        if value.requires_grad:
            self.theirs.append(value)
            self.ours.append(variable)
        return variable


def outputs_of(torch: Any, result: Any) -> list[Any]:
    """PyTorch's results as a list of tensors."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [part for each in result for part in outputs_of(torch, each)]
    return [torch.tensor(result)]


def listed(result: Any) -> list[Any]:
    """Caldera's results as a list of expressions."""
    if isinstance(result, list | tuple):
        return [part for each in result for part in listed(each)]
    return [op.reshape(result, result.shape)]


def in_pairs(x: Any) -> Any:
    """An expression of real numbers: complex ones as pairs."""
    return op.view_as_real(x) if x.dtype.kind == "c" else x


def weights_of(shape: tuple[int, ...], number: int) -> np.ndarray:
    """What an output is multiplied with before everything is summed up to be differentiated."""
    return np.random.default_rng(number).uniform(0.5, 1.5, shape)


class Sample:
    """One sample of an operator, computed by PyTorch: outputs and gradients."""

    def __init__(self, torch: Any, info: Any, sample: Any) -> None:
        self.torch, self.info = torch, info
        self.arguments = (sample.input, *sample.args)
        self.keywords = dict(sample.kwargs)

    def theirs(self, change: Any = None) -> tuple[list[np.ndarray], list[np.ndarray], list[Any]]:
        """Outputs and gradients of PyTorch; `change` is applied to each tensor before."""
        torch = self.torch
        leaves: list[Any] = []

        def fresh(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                new = value.detach().clone() if change is None else change(value.detach())
                if value.requires_grad:
                    leaves.append(new.requires_grad_())
                return new
            if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
                return type(value)(map(fresh, value))
            return value

        arguments = fresh(self.arguments)
        keywords = {name: fresh(value) for name, value in self.keywords.items()}
        name = self.info.full_name
        if name in SYMMETRIC:
            arguments = ((arguments[0] + arguments[0].mH) / 2, *arguments[1:])
        outputs = outputs_of(torch, self.info.op(*arguments, **keywords))
        outputs = outputs[: FIRST_OUTPUTS[name][0]] if name in FIRST_OUTPUTS else outputs
        if name in UP_TO_SIGN:
            outputs = [each.abs() for each in outputs]
        outputs = [
            torch.view_as_real(each.resolve_conj()) if each.is_complex() else each
            for each in outputs
        ]
        parts = [
            (each * torch.as_tensor(weights_of(tuple(each.shape), i)).to(each.dtype)).sum()
            for i, each in enumerate(outputs)
            if each.requires_grad
        ]
        found: list[Any] = []
        if parts and leaves:
            slopes = torch.autograd.grad(sum(p.double() for p in parts), leaves, allow_unused=True)
            found = [
                torch.zeros_like(leaf) if slope is None else slope
                for leaf, slope in zip(leaves, slopes, strict=True)
            ]
        has_slope = [each.requires_grad for each in outputs]
        return [numbers(each) for each in outputs], [numbers(each) for each in found], has_slope

    def ours(self, has_slope: list[bool]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Outputs and gradients of Caldera."""
        convert = Converter(self.torch)
        function = form(self.info.full_name)
        assert function is not None
        arguments = convert(self.arguments)
        keywords = {name: convert(value) for name, value in self.keywords.items()}
        try:
            inspect.signature(function).bind(*arguments, **keywords)
        except TypeError as error:
            raise NotExpressed(str(error)) from None
        outputs = listed(function(*arguments, **keywords))
        if self.info.full_name in UP_TO_SIGN:
            outputs = [op.abs(each) for each in outputs]
        outputs = list(map(in_pairs, outputs))
        parts = [
            op.sum(op.mul(each, op.cast(weights_of(each.shape, i), str(each.dtype))))
            for i, (each, wanted) in enumerate(zip(outputs, has_slope, strict=False))
            if wanted
        ]
        slopes: list[Any] = []
        if parts and convert.ours:
            total = op.cast(parts[0], "float64")
            for part in parts[1:]:
                total = op.add(total, op.cast(part, "float64"))
            slopes = list(map(in_pairs, op.grad(total, convert.ours, unused="zero")))
        plan = cd.compile([*outputs, *slopes], remember=False)
        results = [each.numpy() for each in plan.run()]
        return results[: len(outputs)], results[len(outputs) :]


def numbers(tensor: Any) -> np.ndarray:
    """A tensor as an array of its own; complex numbers as pairs."""
    array = np.array(tensor.resolve_conj().resolve_neg().numpy(force=True), order="C")
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array


def difference(ours: np.ndarray, theirs: np.ndarray, slack: Any = 0.0) -> str:
    """What differs beyond PyTorch's own tolerances and `slack`, or nothing."""
    if ours.shape != theirs.shape:
        return f"shape {ours.shape}, PyTorch {theirs.shape}"
    if ours.dtype.kind != theirs.dtype.kind:
        return f"dtype {ours.dtype}, PyTorch {theirs.dtype}"
    rtol, atol = TOLERANCES.get(str(theirs.dtype), (1e-3, 1e-3))
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= atol + rtol * np.abs(b) + slack
    wrong = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return ""
    place = tuple(map(int, np.argwhere(wrong)[0]))
    return f"{int(wrong.sum())} of {wrong.size}, at {place} {a[place]:.9g}, PyTorch {b[place]:.9g}"


def slacks(sample: Sample) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What rounding the inputs once changes, and how far PyTorch itself is from float64."""
    torch = sample.torch
    generator = torch.Generator().manual_seed(0)

    def wide(value: Any) -> Any:
        wider = {torch.float32: torch.float64, torch.complex64: torch.complex128}
        return value.to(wider[value.dtype]) if value.dtype in wider else value.clone()

    def rounded(value: Any) -> Any:
        if not (value.is_floating_point() or value.is_complex()):
            return value.clone()
        signs = torch.randint(0, 2, value.shape, generator=generator).double() * 2 - 1
        return wide(value) * (1 + signs * torch.finfo(value.dtype).eps)

    plain, exact = sample.theirs(), sample.theirs(wide)
    moved = [sample.theirs(rounded) for _ in range(3)]
    results = []
    for which in (0, 1):
        found = []
        for i, each in enumerate(exact[which]):
            if each.dtype.kind != "f":
                found.append(np.zeros(each.shape))
                continue
            with np.errstate(all="ignore"):
                # Sums round anywhere in them: what counts is PyTorch's worst error in this array.
                errors = np.abs(each - plain[which][i].astype(np.float64))
                finite = errors[np.isfinite(errors)]
                spread = np.full(each.shape, 4 * finite.max(initial=0.0))
                for other in moved:
                    spread = np.fmax(spread, 4 * np.abs(other[which][i] - each))
            found.append(np.nan_to_num(spread, posinf=0.0))
        results.append(found)
    return results[0], results[1]


def compare(sample: Sample, row: Row, label: str) -> None:
    """One sample: counted in the row."""
    theirs, their_slopes, has_slope = sample.theirs()
    try:
        ours, our_slopes = sample.ours(has_slope)
    except (NotExpressed, CalderaError) as error:
        refused = "" if isinstance(error, NotExpressed) else "refused: "
        reason = str(error).splitlines()[0].replace(" float32", "").replace(" float64", "")
        row.not_expressed[refused + reason] += 1
        return
    except Exception as error:
        row.differences.append(f"{label}: {type(error).__name__}: {error}".splitlines()[0])
        return
    if len(ours) != len(theirs):
        row.differences.append(f"{label}: {len(ours)} outputs, PyTorch {len(theirs)}")
        return
    slack: Any = None
    wrong = []
    for which, (mine, yours) in enumerate(((ours, theirs), (our_slopes, their_slopes))):
        failed = ""
        for i, pair in enumerate(zip(mine, yours, strict=True)):
            if difference(*pair) and pair[0].shape == pair[1].shape:
                slack = slacks(sample) if slack is None else slack
                failed = failed or difference(*pair, slack[which][i])
            else:
                failed = failed or difference(*pair)
        wrong.append(failed)
    row.values += not wrong[0]
    row.compared_gradients += bool(their_slopes)
    row.gradients += bool(their_slopes) and not wrong[1]
    for what, failed in zip(("value", "gradient"), wrong, strict=True):
        if failed:
            row.differences.append(f"{label}, {what}: {failed}")


def described(torch: Any, value: Any) -> str:
    """An argument in a few words."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(described(torch, each) for each in value) + "]"
    return repr(value)


def row_of(torch: Any, info: Any, most: int | None) -> Row:
    """All samples of one operator, in both real dtypes and one complex."""
    row = Row(info.full_name)
    kinds = (torch.float32, torch.float64, torch.complex128)
    wanted = [each for each in kinds if each in info.dtypes]
    for dtype in wanted or [torch.int64]:
        torch.manual_seed(0)
        slope = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
        for number, each in enumerate(info.sample_inputs("cpu", dtype, requires_grad=slope)):
            if most is not None and number >= most:
                break
            sample = Sample(torch, info, each)
            given = [described(torch, value) for value in sample.arguments]
            given += [f"{key}={described(torch, v)}" for key, v in sample.keywords.items()]
            row.samples += 1
            compare(sample, row, f"{dtype}".removeprefix("torch.") + f" ({', '.join(given)})")
    return row


def report(rows: Iterable[Row], version: str, most: int | None) -> str:
    """The table, the total, and the reasons."""
    rows = list(rows)
    limit = "all samples" if most is None else f"the first {most} samples of an operator and dtype"
    lines = [
        f"PyTorch {version}, float32, float64 and complex128, on the CPU; {limit}.",
        "",
        "| operator | samples | values agree | gradients agree | not expressed | differs |",
        "|---|---|---|---|---|---|",
        *(row.line() for row in rows),
    ]
    missing = sum(sum(row.not_expressed.values()) for row in rows)
    lines.append(
        f"| **{len(rows)} operators** | {sum(row.samples for row in rows)} "
        f"| {sum(row.values for row in rows)} | {sum(row.gradients for row in rows)} of "
        f"{sum(row.compared_gradients for row in rows)} | {missing} "
        f"| {sum(len(row.differences) for row in rows)} |"
    )
    lines += ["", "Not expressed, and why:", ""]
    for row in rows:
        for reason, count in row.not_expressed.most_common():
            lines.append(f"- {row.name}, {count}: {reason}")
    notes = [(name, f"absolute values: {why}") for name, why in UP_TO_SIGN.items()]
    notes += [
        (name, f"the first {n} of the outputs: {why}") for name, (n, why) in FIRST_OUTPUTS.items()
    ]
    notes += [(name, f"of symmetric matrices: {why}") for name, why in SYMMETRIC.items()]
    notes += [(name, f"differs by convention: {why}") for name, why in CONVENTIONS.items()]
    lines += ["", "Compared in a way of their own:", ""]
    lines += [f"- {name}, {why}" for name, why in notes]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Compare, print, and say whether something differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.opinfo", description=__doc__)
    parser.add_argument("names", nargs="*", help="operators; all that Caldera has if none is given")
    parser.add_argument("--most", type=int, help="samples of an operator and dtype, at most")
    chosen = parser.parse_args(arguments)
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    cd.settings.update(tune_budget_s=0.0)
    rows = []
    for info in sorted(op_db, key=lambda each: each.full_name):
        known = form(info.full_name) is not None
        if known and (not chosen.names or info.full_name in chosen.names):
            rows.append(row_of(torch, info, chosen.most))
            print(rows[-1].line(), file=sys.stderr, flush=True)
    print(report(rows, torch.__version__, chosen.most), end="")
    return int(any(row.differences and row.name not in CONVENTIONS for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
