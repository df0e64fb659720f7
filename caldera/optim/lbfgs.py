"""L-BFGS (Liu and Nocedal, 1989) with PyTorch's line search, one evaluation per step.

A step receives loss and gradient at the point to which the previous step moved the parameters. The
line search needs several such evaluations. Its state is kept in variables of the plan, so that a
search continues in the next step, after a checkpoint, and identically on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import reduce
from typing import Any, ClassVar, NamedTuple

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.node import pinned
from caldera.core.tensor.dtype import DType, float32, promote
from caldera.core.tensor.shape import Shape, size
from caldera.optim.line_search import (
    CURVATURE,
    DECREASE,
    LinePoint,
    LineSearch,
    all_of,
    any_of,
    chosen,
    minimum_of_cubic,
)
from caldera.optim.optimizer import Optimizer, Rate, State, assigned, optimizers
from caldera.optim.schedule import require_count


class JudgedTrial(NamedTuple):
    """Result of a trial: search state, gradient at the lower end, accepted point if `done`."""

    search: LineSearch
    gradient: Expr
    done: Expr
    accepted: LinePoint
    accepted_gradient: Expr


@optimizers.register("lbfgs")
class LBFGS(Optimizer):
    """Quasi-Newton steps from the last changes of parameters and gradients.

    Meant for smooth losses of full batches: `fit` rejects smaller batches. Each step evaluates the
    loss once. PyTorch's max_iter and max_eval have no counterpart: the number of steps is the
    number of evaluations. It runs in one process and with `parallel.DataParallel`. Decay, clipping,
    groups and accumulation are not available, since the line search needs the loss of these very
    gradients.

    Args:
        learning_rate: Factor of the direction without a line search; the first direction is
            shortened to a sum of absolute values of 1.
        history: Number of changes that are stored.
        line_search: None, or "strong_wolfe": a point is accepted when Wolfe's conditions hold.
        most_trials: Maximum number of evaluations of a line search; rejected points may have a
            larger loss.
        tolerance: Magnitude of the largest gradient element at which steps end.
        least_change: Slope, and width of a line search, below which steps end.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> x = op.var("x", (2,), fill=cd.constant(3.0), dtype="float64")
    >>> loss = op.sum((x - 1.0) ** 4.0) + op.sum(x * x)
    >>> found = optim.LBFGS(line_search="strong_wolfe").minimize(loss, [x], steps=50)
    >>> found.converged, found.steps < 20
    (True, True)
    """

    needs_whole: ClassVar[bool] = True
    needs_batch: ClassVar[bool] = True
    ranges: ClassVar[Mapping[str, tuple[Any, ...]]] = {"learning_rate": ("near", 30.0)}

    def __init__(
        self,
        learning_rate: Rate = 1.0,
        *,
        history: int = 10,
        line_search: str | None = None,
        most_trials: int = 25,
        tolerance: float = 1e-7,
        least_change: float = 1e-9,
    ) -> None:
        super().__init__(learning_rate)
        require_count("LBFGS", "history", history)
        require_count("LBFGS", "most_trials", most_trials)
        known = (None, "strong_wolfe")
        require(line_search in known, "LBFGS", "line_search None or 'strong_wolfe'", line_search)
        least = min(tolerance, least_change)
        require(least >= 0, "LBFGS", "tolerance and least_change >= 0", least)
        self.history = history
        self.line_search = line_search
        self.most_trials = most_trials
        self.tolerance = tolerance
        self.least_change = least_change

    def _check_assignment(self, name: str, value: Any) -> None:
        absent = ("clip", "decay", "weight_decay", "groups", "accumulate", "history", "line_search")
        require(name not in absent, "LBFGS", f"an unchanged {name}", f"{name} = {value!r}")
        super()._check_assignment(name, value)

    def kept_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        return {"history": (2 * self.history + 4, *shape)}

    def update(
        self, parameter: Expr, gradient: Expr, state: State, rate: Expr, step: Expr
    ) -> tuple[Expr, State]:
        raise NotImplementedError("each step updates all parameters together")

    def _state_of(self, variable: Variable) -> dict[str, Variable]:
        return self.state.setdefault(variable, {})

    def prepare(self, variables: Sequence[Variable]) -> None:
        """Create the state of these parameters now, as the first step would: for loading it."""
        self._choose_place(variables)
        self._create(self._place_of(variables[0]))
        self._flat_state(variables)

    def _flat_state(self, variables: Sequence[Variable]) -> dict[str, Variable]:
        """Return the state of all parameters, stored with the first."""
        for variable in variables:
            self._state_of(variable)
        kept = self.state[variables[0]]
        count = sum(size(each.shape) for each in variables)
        if not kept:
            shapes: dict[str, Shape] = dict.fromkeys(("origin", "direction", "gradient"), (count,))
            shapes |= {"lowest": (count,)} if self.line_search else {}
            shapes |= dict.fromkeys(("steps", "changes"), (self.history, count))
            dtype, place = _wide(variables), self._place_of(variables[0])
            kept |= {
                n: op.var(f"lbfgs/{n}", s, dtype=dtype, device=place) for n, s in shapes.items()
            }
            scalars = {"curvatures": (self.history,), "search": (len(fields(LineSearch)),)}
            for name, shape in scalars.items():
                kept[name] = op.var(f"lbfgs/{name}", shape, dtype="float64", device=place)
        require(
            kept["origin"].shape == (count,) and len(self.state) == len(variables),
            "LBFGS",
            f"the {len(self.state)} parameters of its first step",
            f"{len(variables)} of {count} elements",
        )
        return kept

    def _assignments(
        self,
        variables: Sequence[Variable],
        gradients: Sequence[Expr],
        ok: Expr | None,
        weight: Expr | float,
        loss: Expr | None,
    ) -> list[Expr]:
        require(
            loss is not None or not self.line_search,
            "LBFGS.apply",
            "loss= of the gradients, for a line search",
            hint="call train or minimize, which pass it on",
        )
        taken = self._create(self._place_of(variables[0]))
        kept = self._flat_state(variables)
        with self._there(variables):
            gradient, here = (_flat(each, _wide(variables)) for each in (gradients, variables))
            value = op.cast(0.0 if loss is None else loss, "float64")
            now = LineSearch.of(kept["search"])
            line = self._evaluated(kept, now, gradient, value)
            rate = op.cast(self._rate(op.cast(taken, "float64")), "float64")
            new = self._continued(kept, line, here, rate)
            updates = [assigned(kept[name], new[name], ok) for name in kept]
            pieces = op.split(new["point"], [size(each.shape) for each in variables])
        updates.append(assigned(taken, taken + 1, ok))
        for variable, piece in zip(variables, pieces, strict=True):
            moved = op.cast(op.reshape(piece, variable.shape), variable.dtype)
            updates.append(assigned(variable, moved, ok))
        return updates

    @contextmanager
    def _there(self, variables: Sequence[Variable]) -> Iterator[None]:
        """Context manager that pins nodes to the device of the state, if one was given."""
        if not self.apart:
            yield
            return
        with pinned(self._place_of(variables[0]).name):
            yield

    # --- along the line

    def _evaluated(
        self, kept: Mapping[str, Expr], now: LineSearch, gradient: Expr, loss: Expr
    ) -> JudgedTrial:
        """Update the line search by the evaluated point."""
        here = LinePoint(now.length, loss, _dot(gradient, kept["direction"]))
        if not self.line_search:
            return JudgedTrial(now, gradient, now.phase >= 0.0, here, gradient)
        grown, grown_gradient, is_fine = self._grown(kept, now, here, gradient)
        shrunk, shrunk_gradient, is_good = self._shrunk(kept, now, here, gradient)
        is_growing = now.phase == 1.0
        search = chosen(is_growing, grown, shrunk)
        lowest = op.where(is_growing, grown_gradient, shrunk_gradient)
        first, second = search.ends
        width = op.abs(second.at - first.at) * op.cast(op.max(op.abs(kept["direction"])), "float64")
        is_over = any_of(search.count >= float(self.most_trials), width < self.least_change)
        good = op.where(is_growing, is_fine, is_good)
        ends = all_of(search.phase == 2.0, is_over)
        # A point that was accepted before is where the parameters are.
        is_there = now.phase == 0.0
        end = chosen(search.low == 0.0, first, second)
        take_here = any_of(is_there, all_of(is_growing, is_fine))
        return JudgedTrial(
            search,
            lowest,
            any_of(is_there, good, ends),
            chosen(take_here, here, end),
            op.where(take_here, gradient, lowest),
        )

    def _grown(
        self, kept: Mapping[str, Expr], now: LineSearch, here: LinePoint, gradient: Expr
    ) -> tuple[LineSearch, Expr, Expr]:
        """Phase 1: extend the interval, accept the point, or bracket a minimum."""
        before, _ = now.ends
        is_last = now.count >= float(self.most_trials)
        is_higher = any_of(
            here.loss > now.loss + DECREASE * here.at * now.slope,
            all_of(now.count > 1.0, here.loss >= before.loss),
        )
        is_flat = op.abs(here.slope) <= -CURVATURE * now.slope
        is_fine = all_of(op.logical_not(is_last), op.logical_not(is_higher), is_flat)
        is_bracket = any_of(is_last, is_higher, here.slope >= 0.0)
        origin = LinePoint(now.at0 * 0.0, now.loss, now.slope)
        left = chosen(is_last, origin, before)
        left_gradient = op.where(is_last, kept["gradient"], kept["lowest"])
        low = op.where(left.loss <= here.loss, 0.0, 1.0)
        bracket = replace(
            now.between(left, here, low), phase=now.phase + 1.0, close=now.close * 0.0
        )
        further = minimum_of_cubic(
            before, here, here.at + 0.01 * (here.at - before.at), here.at * 10.0
        )
        wider = replace(now.between(here, here, now.low), length=further, count=now.count + 1.0)
        found = chosen(is_bracket, bracket, wider)
        is_left = all_of(is_bracket, low == 0.0)
        return found, op.where(is_left, left_gradient, gradient), is_fine

    def _shrunk(
        self, kept: Mapping[str, Expr], now: LineSearch, here: LinePoint, gradient: Expr
    ) -> tuple[LineSearch, Expr, Expr]:
        """Phase 2: replace one end of the interval by the point."""
        first, second = now.ends
        is_first = now.low == 0.0
        low, high = chosen(is_first, first, second), chosen(is_first, second, first)
        is_higher = any_of(
            here.loss > now.loss + DECREASE * here.at * now.slope, here.loss >= low.loss
        )
        is_flat = op.abs(here.slope) <= -CURVATURE * now.slope
        turns = all_of(op.logical_not(is_flat), here.slope * (high.at - low.at) >= 0.0)
        new_low = chosen(is_higher, low, here)
        new_high = chosen(is_higher, here, chosen(turns, low, high))
        ends = chosen(is_first, new_low, new_high), chosen(is_first, new_high, new_low)
        side = op.where(is_higher, op.where(ends[0].loss <= ends[1].loss, 0.0, 1.0), now.low)
        found = replace(now.between(*ends, side), count=now.count + 1.0)
        is_kept = all_of(is_higher, side == now.low)
        lowest = op.where(is_kept, kept["lowest"], gradient)
        return found, lowest, all_of(op.logical_not(is_higher), is_flat)

    def _next_trial(self, search: LineSearch) -> LineSearch:
        """Choose the next trial point, away from ends that have stopped moving."""
        first, second = search.ends
        left, right = op.minimum(first.at, second.at), op.maximum(first.at, second.at)
        at = minimum_of_cubic(first, second, left, right)
        margin = 0.1 * (right - left)
        is_close = op.minimum(right - at, at - left) < margin
        is_moved = all_of(is_close, any_of(search.close > 0.0, at >= right, at <= left))
        inside = op.where(op.abs(at - right) < op.abs(at - left), right - margin, left + margin)
        close = op.where(all_of(is_close, op.logical_not(is_moved)), 1.0, 0.0)
        return replace(search, length=op.where(is_moved, inside, at), close=close)

    # --- from line to line

    def _continued(
        self, kept: Mapping[str, Expr], line: JudgedTrial, here: Expr, rate: Expr
    ) -> dict[str, Expr]:
        """Return the new state, and the next trial `point`."""
        search, done = line.search, line.done
        at, found = op.cast(line.accepted.at, here.dtype), line.accepted_gradient
        is_there = any_of(search.phase == 0.0, op.cast(not self.line_search, "bool"))
        place = op.where(is_there, here, kept["origin"] + at * kept["direction"])
        new = self._new_line(kept, line, at, rate)
        is_converged = op.max(op.abs(found)) <= self.tolerance
        slope = _dot(found, new["direction"])
        is_stuck = slope > -self.least_change
        rests = any_of(is_converged, is_stuck)
        zero = search.scale * 0.0
        origin = LinePoint(zero, line.accepted.loss, slope)
        fresh = LineSearch(
            op.where(rests, 0.0, 1.0),
            op.cast(new["length"], "float64"),
            origin.loss,
            slope,
            zero,
            zero,
            *origin,
            *origin,
            zero,
            op.cast(new["scale"], "float64"),
        )
        still = replace(search, phase=zero, length=line.accepted.at)
        begun = chosen(is_converged, still, fresh)
        goes_on = chosen(search.phase == 2.0, self._next_trial(search), search)
        after = chosen(done, begun, goes_on)
        is_new = all_of(done, op.logical_not(is_converged))
        names = ("direction", "steps", "changes", "curvatures")
        result = {name: op.where(is_new, new[name], kept[name]) for name in names}
        result["gradient"] = op.where(is_new, found, kept["gradient"])
        if self.line_search:
            result["lowest"] = op.where(is_new, found, line.gradient)
        result["origin"] = op.where(done, place, kept["origin"])
        step = op.cast(after.length, here.dtype) * result["direction"]
        moved = result["origin"] + step
        result["point"] = op.where(all_of(done, rests), place, moved)
        result["search"] = after.stacked()
        return result

    def _new_line(
        self, kept: Mapping[str, Expr], line: JudgedTrial, at: Expr, rate: Expr
    ) -> dict[str, Expr]:
        """Return the extended history, the next direction and its first trial length."""
        search, gradient = line.search, line.accepted_gradient
        dtype = gradient.dtype
        is_first = search.length == 0.0
        change, step = gradient - kept["gradient"], at * kept["direction"]
        curvature = _dot(change, step)
        is_good = all_of(op.logical_not(is_first), curvature > 1e-10)
        safe = op.where(is_good, curvature, 1.0)
        rows = {"steps": step[None], "changes": change[None], "curvatures": (1.0 / safe)[None]}
        new = {
            name: op.where(is_good, op.concat([kept[name][1:], row]), kept[name])
            for name, row in rows.items()
        }
        squares = op.where(is_good, _dot(change, change), 1.0)
        usual = op.where(is_first, 1.0, search.scale)
        scale = op.where(is_good, curvature / squares, usual)
        rest = -gradient
        weights: list[Expr] = [rest] * self.history
        for index in reversed(range(self.history)):
            part = _dot(new["steps"][index], rest) * new["curvatures"][index]
            weights[index] = op.cast(part, dtype)
            rest = rest - weights[index] * new["changes"][index]
        direction = op.cast(scale, dtype) * rest
        for index in range(self.history):
            part = op.cast(_dot(new["changes"][index], direction) * new["curvatures"][index], dtype)
            direction = direction + (weights[index] - part) * new["steps"][index]
        total = op.cast(op.sum(op.abs(gradient)), "float64")
        shortened = op.minimum(1.0, 1.0 / op.where(total == 0.0, 1.0, total)) * rate
        new["direction"] = op.where(is_first, -gradient, direction)
        new["length"] = op.where(is_first, shortened, rate)
        new["scale"] = scale
        return new


def _wide(variables: Sequence[Variable]) -> DType:
    return reduce(promote, [each.dtype for each in variables], float32)


def _flat(values: Sequence[Expr], dtype: DType) -> Expr:
    return op.concat([op.cast(op.reshape(each, (-1,)), dtype) for each in values])


def _dot(a: Expr, b: Expr) -> Expr:
    return op.cast(op.sum(a * b), "float64")
