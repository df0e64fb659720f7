"""A model as it was before anything was learned."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from caldera.train.saving.snapshot import assign_all, model_variables

if TYPE_CHECKING:
    from caldera.train.model import Model

# The seed that parameters are drawn from belongs to the process.
_one_at_a_time = threading.Lock()


def reinitialise(model: Model) -> None:
    """Give a model the parameters and states that a new one with its seed would have.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> from caldera.train.reinitialise import reinitialise
    >>> def made(seed):
    ...     return cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)], seed=seed)
    >>> model = made(seed=1)
    >>> model.seed = 5
    >>> reinitialise(model)
    >>> np.array_equal(model.parameters()[0].numpy(), made(seed=5).parameters()[0].numpy())
    True
    """
    variables = model_variables(model)
    books = [(layer, dict(vars(layer))) for layer in model.walk()]
    with _one_at_a_time:
        try:
            for layer, _ in books:
                layer.forget()
            model.build_again()
            values = {name: each.numpy() for name, each in model_variables(model).items()}
        finally:
            # The variables stay, with all who know them; only their values are new.
            for layer, kept in books:
                vars(layer).clear()
                vars(layer).update(kept)
    assign_all(variables, values, "reinitialise")
