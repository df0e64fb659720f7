"""Variables that an optimizer keeps between steps, and the device that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self
from uuid import uuid4

from caldera import op
from caldera.base.arguments import require
from caldera.base.assignment import check_attribute, is_inside
from caldera.base.config import settings
from caldera.base.configurable import Adjustable
from caldera.compiler.lazy import Variable
from caldera.core.memory import Device, size_class
from caldera.core.memory import device as find_device
from caldera.core.tensor.dtype import float32, promote
from caldera.core.tensor.shape import Shape, size
from caldera.errors import ConfigError
from caldera.optim.gradients import Accumulation
from caldera.optim.schedule import EpochRule, Schedule, require_positive

Rate = float | Schedule | EpochRule


class OptimizerState(Adjustable):
    """Step count, learning rate, accumulated gradients, and the state of each parameter.

    Variables are created by the first step or by `prepare`. Without `device` they are kept with
    the parameters, or on the host if the parameters' device has no room for them.
    """

    keeps: tuple[str, ...]
    needs_whole: ClassVar[bool] = False
    """True if the rule needs a whole parameter, of which ranks cannot have parts."""
    needs_batch: ClassVar[bool] = False
    """True if each step needs the loss and gradients of all samples and all parameters."""
    follows_rate: ClassVar[bool] = True
    """False if only the first step reads the learning rate."""
    accumulate: int
    device: str | None
    _given_rate: Rate

    def _begin_state(self) -> None:
        self._token = uuid4().hex
        self._changes = 0
        self.apart = self.device
        self.state: dict[Variable, dict[str, Variable]] = {}
        self._step: Variable | None = None
        self._learning_rate: Variable | None = None
        self._accumulation: Accumulation | None = None

    def owned_by(self, owner: str) -> Self:
        if self._step is not None:
            # Steps taken without an owner must not be assigned to a later owner.
            vars(self).setdefault("_owner", "")
        return super().owned_by(owner)

    @property
    def step(self) -> Variable:
        """Number of steps taken: a variable, part of plans and checkpoints."""
        return self._created(self._step)

    def __setattr__(self, name: str, value: Any) -> None:
        if name[0] != "_" and not is_inside(self):
            check_attribute(type(self).__name__, self, name, value)
            self._check_assignment(name, value)
        object.__setattr__(self, name, value)

    def _check_assignment(self, name: str, value: Any) -> None:
        """Raise if steps would ignore the new value; count the changes that steps follow."""
        is_fixed = name in ("state", "apart", "accumulate", "device") and value != vars(self)[name]
        require(
            self._step is None or not is_fixed,
            type(self).__name__,
            f"an unchanged {name} after the first step",
            f"{name} = {value!r}",
            "assign a new optimizer to the model",
        )
        if name != "learning_rate":
            self._changes += 1

    @property
    def changes(self) -> int:
        """Number of assignments to attributes that require new plans.

        >>> from caldera import optim
        >>> adam = optim.Adam()
        >>> adam.beta1 = 0.5
        >>> adam.changes
        1
        """
        return self._changes

    @property
    def learning_rate(self) -> Variable:
        """The learning rate, if it is not a schedule: assign to it to change running plans.

        >>> import caldera as cd
        >>> from caldera import op, optim
        >>> x = op.var("x", (), fill=cd.constant(3.0))
        >>> descent = optim.SGD(0.5)
        >>> step = cd.compile(descent.train(x ** 2, [x]))
        >>> descent.learning_rate.assign(0.25)
        >>> _ = step.run()
        >>> x.numpy().item()
        1.5
        """
        return self._created(self._learning_rate)

    @learning_rate.setter
    def learning_rate(self, given: float) -> None:
        require_positive(type(self).__name__, given)
        require(
            not isinstance(self._given_rate, Schedule | EpochRule),
            type(self).__name__,
            "a learning rate that no schedule decides",
            f"learning_rate = {given}, where {self._given_rate!r} does",
            f"write model.optimizer = optim.{type(self).__name__}({given})",
        )
        require(
            self.follows_rate or self._step is None,
            type(self).__name__,
            "an unchanged learning rate: it sets only the size of the first step",
            f"learning_rate = {given}",
            f"write model.optimizer = optim.{type(self).__name__}({given})",
        )
        self._given_rate = given
        if self._learning_rate is not None:
            self._learning_rate.assign(given)

    def _assigned(self) -> dict[str, Any]:
        known = super(Adjustable, self).arguments().get("learning_rate")
        is_other = known is not None and self._given_rate is not known
        return super()._assigned() | ({"learning_rate": self._given_rate} if is_other else {})

    def variables(self) -> list[Variable]:
        """Return the state variables to checkpoint, step count first."""
        kept = [self.step]
        if self._learning_rate is not None:
            kept.append(self._learning_rate)
        if self._accumulation is not None:
            kept += self._accumulation.variables()
        return kept + [variable for state in self.state.values() for variable in state.values()]

    def named_variables(self) -> dict[str, Variable]:
        """Return the state variables by the names that a checkpoint has for them."""
        return {each.name: each for each in self.variables()}

    def prepare(self, variables: Sequence[Variable]) -> None:
        """Create the state of these parameters now, as the first step would: for loading it.

        >>> from caldera import op, optim
        >>> adam = optim.Adam()
        >>> adam.prepare([op.var("w", (2,))])
        >>> [variable.name for variable in adam.variables()]
        ['step', 'learning rate', 'w/mean', 'w/square']
        """
        self._choose_place(variables)
        for variable in variables:
            self._create(self._place_of(variable))
            self._state_of(variable)
            if self._accumulation is not None:
                self._accumulation.sum_of(variable, promote(variable.dtype, float32))

    def kept_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        """Return the shapes of the state of a parameter of this shape, by name.

        >>> from caldera import optim
        >>> optim.Adam().kept_shapes((3, 2))
        {'mean': (3, 2), 'square': (3, 2)}
        """
        return dict.fromkeys(self.keeps, tuple(shape))

    def kept_for(self, variable: Variable) -> list[Variable]:
        """Return the state variables of this parameter."""
        sums = {} if self._accumulation is None else self._accumulation.sums
        kept = list(self.state.get(variable, {}).values())
        return [*kept, sums[variable]] if variable in sums else kept

    def hand_over(self, old: Variable, new: Variable, made: Callable[[Variable], Variable]) -> None:
        """Move the state of `old` to `new`; `made` converts each variable."""
        if old in self.state:
            kept = self.state.pop(old)
            self.state[new] = {name: made(variable) for name, variable in kept.items()}
        if self._accumulation is not None and old in self._accumulation.sums:
            self._accumulation.sums[new] = made(self._accumulation.sums.pop(old))

    def _created(self, variable: Variable | None) -> Variable:
        if variable is None:
            raise ConfigError.build(
                type(self).__name__,
                expected="an optimizer that has variables",
                got="none yet",
                hint="call train, apply or minimize first",
            )
        return variable

    def _create(self, device: Device) -> Variable:
        if self._step is None:
            self._step = op.var("step", (), dtype="int64", device=device)
            if not isinstance(self._given_rate, Schedule):
                given = self._given_rate
                number = float(given.value if isinstance(given, EpochRule) else given)
                self._learning_rate = op.var(
                    "learning rate", (), fill=number, dtype="float64", device=device
                )
            if self.accumulate > 1:
                self._accumulation = Accumulation(self.accumulate, device, self.apart)
        return self._step

    def _place_of(self, variable: Variable) -> Device:
        """Return the device of a parameter's state."""
        device: Device = variable.tensor.device
        return device if self.apart is None else find_device(self.apart)

    def _choose_place(self, variables: Sequence[Variable]) -> None:
        if self._step is None and self.device is None:
            self.apart = host_if_full(variables, self.kept_shapes)

    def _state_of(self, variable: Variable) -> dict[str, Variable]:
        """Return the state by name, with new variables for names that a changed rule has added."""
        known = self.state.get(variable, {})
        self.state[variable] = {
            name: known[name]
            if name in known
            else op.var(
                f"{variable.name}/{name}",
                shape,
                dtype=promote(variable.dtype, float32),
                device=self._place_of(variable),
            )
            for name, shape in self.kept_shapes(variable.shape).items()
        }
        return self.state[variable]


def host_if_full(
    variables: Sequence[Variable], kept_shapes: Callable[[Shape], Mapping[str, Shape]]
) -> str | None:
    """Return the host, if the device of these parameters cannot hold them, a gradient for each and
    their state; None if it can, or if settings say where plans run."""
    kept = [[size(each) for each in kept_shapes(variable.shape).values()] for variable in variables]
    if not any(kept) or settings.placement != "auto":
        return None
    device: Device = variables[0].tensor.device
    there = None if device.is_host else device.memory_bytes
    if there is None:
        return None
    needed = sum(
        size_class(each.tensor.nbytes) * (1 + (not each.tensor.memory.has_block))
        + sum(size_class(count * each.dtype.itemsize) for count in counts)
        for each, counts in zip(variables, kept, strict=True)
        if each.tensor.device is device
    )
    return "cpu" if needed > there - device.pool.in_use else None
