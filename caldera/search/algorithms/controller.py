"""A reinforcement-learning controller: a small network learns which decisions are good."""

from __future__ import annotations

import numpy as np

from caldera import op, optim
from caldera.compiler.lazy import compile
from caldera.core.tensor import constant
from caldera.search.dimension import Dimension
from caldera.search.method import Method, TrialProposal, methods
from caldera.search.trial import Trial
from caldera.train.arguments import whole_number

_NEVER = -1e9
_RANKED = 100
"""A reward is the rank of a trial among so many before it."""


@methods.register("controller")
class Controller(Method):
    """A policy that makes one decision a dimension, each knowing those before it, and is trained by
    REINFORCE (Williams 1992; Zoph and Le 2017): decisions of trials that rank high among the last
    ones become more likely.

    It is a network of one masked layer, trained with Adam after every `batch` trials. Numbers are
    decided to one of `bins` stretches of their range, inside which they are drawn.

    >>> from caldera import search
    >>> space = {"kind": search.choice(["a", "b", "c"]), "size": search.integer(1, 4)}
    >>> def cost(kind, size):
    ...     return (kind != "c") + abs(size - 3)
    >>> study = search.run(cost, space, method="controller", trials=60, verbose=0)
    >>> study.best.parameters
    {'kind': 'c', 'size': 3}
    """

    def __init__(
        self,
        bins: int = 10,
        batch: int = 10,
        learning_rate: float = 0.1,
        entropy: float = 0.01,
        steps: int = 3,
    ) -> None:
        self.bins = whole_number(bins, "bins", 2, "Controller")
        self.batch = whole_number(batch, "batch", 1, "Controller")
        self.steps = whole_number(steps, "steps", 1, "Controller")
        self.learning_rate, self.entropy = learning_rate, entropy

    def prepare(self) -> None:
        found = self.space.dimensions()
        self._paths = list(found)
        self._sizes = [_size(each, self.bins) for each in found.values()]
        self._width = max(self._sizes)
        self._seen: list[Trial] = []
        self._write_policy()

    def _write_policy(self) -> None:
        """The policy and its update as one plan: decisions and advantages in, the loss out."""
        count, width = len(self._paths), self._width
        size = count * width
        # A decision knows those before it, and no choice beyond what its dimension has.
        order = np.repeat(np.arange(count), width)
        self._mask = (order[:, None] < order[None, :]).astype("float32")
        offered = np.arange(width)[None, :] < np.array(self._sizes)[:, None]
        self._offered = np.where(offered, 0.0, _NEVER).astype("float32")
        self._weight = op.var("controller/weight", (size, size), fill=constant(0.0))
        self._bias = op.var("controller/bias", (size,), fill=constant(0.0))
        decisions = op.input("decisions", (self.batch, size))
        advantages = op.input("advantages", (self.batch,))
        logits = decisions @ (self._weight * self._mask) + self._bias
        logits = op.reshape(logits, (self.batch, count, width)) + self._offered
        log_chances = op.log_softmax(logits, axis=-1)
        taken = op.reshape(decisions, (self.batch, count, width))
        likely = op.sum(log_chances * taken, axis=(1, 2))
        spread = -op.sum(op.exp(log_chances) * op.maximum(log_chances, -100.0), axis=(1, 2))
        loss = -op.mean(advantages * likely) - self.entropy * op.mean(spread)
        variables = [self._weight, self._bias]
        updates = optim.Adam(self.learning_rate).apply(variables, op.grad(loss, variables))
        self._plan = compile([loss, *updates])

    def ask(self, number: int) -> TrialProposal | None:
        random, count, width = self.random(number), len(self._paths), self._width
        weight, bias = self._weight.numpy() * self._mask, self._bias.numpy()
        so_far = np.zeros(count * width, "float32")
        decided: list[int] = []
        units: dict[str, float] = {}
        for index, path in enumerate(self._paths):
            part = slice(index * width, (index + 1) * width)
            logits = so_far @ weight[:, part] + bias[part] + self._offered[index]
            chances = np.exp(logits - logits.max()).astype("float64")
            choice = int(random.choice(width, p=chances / chances.sum()))
            so_far[index * width + choice] = 1.0
            decided.append(choice)
            units[path] = (choice + random.random()) / self._sizes[index]
        return TrialProposal(self.space.at(units), note={"decisions": decided})

    def tell(self, trial: Trial) -> None:
        if len(trial.note.get("decisions", ())) != len(self._paths):
            return
        self._seen.append(trial)
        if len(self._seen) % self.batch == 0:
            self._learn(self._seen[-self.batch :])

    def _learn(self, trials: list[Trial]) -> None:
        losses = np.array([self.loss(trial) for trial in self._seen[-_RANKED:]])
        rewards = [
            2 * np.mean(losses > self.loss(trial)) + np.mean(losses == self.loss(trial)) - 1
            for trial in trials
        ]
        decisions = np.zeros((self.batch, len(self._paths), self._width), "float32")
        for row, trial in enumerate(trials):
            for index, choice in enumerate(trial.note["decisions"]):
                decisions[row, index, choice] = 1.0
        feeds = {
            "decisions": decisions.reshape(self.batch, -1),
            "advantages": np.array(rewards, "float32"),
        }
        for _ in range(self.steps):
            self._plan.run(feeds)


def _size(dimension: Dimension, bins: int) -> int:
    """Into how many stretches a dimension is cut: its values if they are few."""
    values = dimension.grid()
    return bins if values is None or len(values) > 4 * bins else max(len(values), 1)
