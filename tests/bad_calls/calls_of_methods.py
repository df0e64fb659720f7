"""A valid call of each public method that takes arguments, with the object it is called of.

Operators count: `x + y` is `Expr.__add__`. What Caldera itself calls strategies, callbacks and
layers of a user's own with is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache, partial
from typing import Any

import numpy as np

import caldera as cd
from caldera import nn, op
from tests.bad_calls import methods_of_services
from tests.bad_calls.calls_of_op import labels, x
from tests.bad_calls.calls_of_rooms import LAYERS, samples
from tests.bad_calls.damage import Given
from tests.bad_calls.outcome import inputs_of
from tests.bad_calls.public_names import public_names

Made = Callable[[], Any]
METHODS: dict[str, tuple[Made, dict[str, Given]]] = {}
"""By the name of a class: an object of it, made anew for each call, and its methods."""


def tensor() -> cd.Tensor:
    return cd.tensor(x(2, 3))


def expression() -> Any:
    return op.var("x", (2, 3), fill=x(2, 3)) * 2.0


@cache
def plan() -> Any:
    return cd.compile(op.input("x", (2,)) * 2.0)


@cache
def network() -> cd.NeuralNetwork:
    layers = [nn.Input((4,)), nn.Dense(2)]
    return cd.NeuralNetwork(layers, batch_size=4, epochs=1, learning_rate=0.1)


def history() -> cd.History:
    made = cd.History()
    made.add(0, {"loss": 1.0})
    return made


def data_set() -> cd.data.Dataset:
    return cd.data.Dataset(samples(), samples(), 2, ("a", "b"), "mine")


def layer() -> nn.Layer:
    made = nn.Dense(2)
    made(cd.tensor(x(3, 4)))
    return made


_BINARY = (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "pow",
    "rpow",
    "floordiv",
    "mod",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
)
OPERATORS: dict[str, Given] = {
    **{f"__{name}__": lambda f: f(2.0) for name in _BINARY},
    "__matmul__": lambda f: f(x(3, 2)),
    "__getitem__": lambda f: f((1, slice(2))),
}
INDICES: Given = lambda f: f(np.array([0, 1]))  # noqa: E731
METHODS["Tensor"] = (
    tensor,
    {
        **OPERATORS,
        "__setitem__": lambda f: f((1, 2), 4.0),
        "astype": lambda f: f("float64"),
        "fill_": lambda f: f(cd.constant(1.0)),
        "from_bytes": lambda f: f(b"\x01\x00\x02\x00", "int16", (2,)),
        "from_numpy": lambda f: f(x(3)),
        "get": lambda f: f((1, 2)),
        "reshape": lambda f: f(3, 2),
        "set": lambda f: f((1, 2), 4.0),
        "squeeze": lambda f: f(),
        "to": lambda f: f("cpu"),
        "transpose": lambda f: f(1, 0),
        "unsqueeze": lambda f: f(0),
    },
)
METHODS["Expr"] = expression, OPERATORS
METHODS["truths"] = lambda: expression() > 1.0, {"__and__": lambda f: f(True)}
METHODS["At"] = (
    lambda: expression().at[0],
    {
        "set": lambda f: f(1.0),
        "add": lambda f: f(x(3)),
    },
)
METHODS["Variable"] = (
    lambda: op.var("x", (2, 3)),
    {
        "assign": lambda f: f(x(2, 3)),
        "move": lambda f: f("cpu"),
        "of": lambda f: f("w", tensor()),
    },
)
METHODS["Plan"] = (
    plan,
    {
        "draw": lambda f: f("plan.svg"),
        "explain": lambda f: f({"x": x(2)}),
        "run": lambda f: f({"x": x(2)}),
        "trace": lambda f: f("trace.json", {"x": x(2)}, runs=1),
    },
)
METHODS["NeuralNetwork"] = (
    network,
    {
        "add_loss": lambda f: f(x(8, 4)),
        "add_metric": lambda f: f("mean", x(8, 4)),
        "check_exportable": lambda f: f("export"),
        "choose_threshold": lambda f: f((x(8, 4), labels(8))),
        "evaluate": lambda f: f((x(8, 4), labels(8))),
        "explain": lambda f: f({"width": [1.0]}),
        "fit": lambda f: f((x(8, 4), labels(8)), verbose=0, epochs=1),
        "freeze": lambda f: f(False),
        "load_weights": lambda f: f("missing.caldera"),
        "lr_find": lambda f: f((x(8, 4), labels(8)), steps=2),
        "predict": lambda f: f(x(8, 4)),
        "profile": lambda f: f((x(8, 4), labels(8))),
        "quantise": lambda f: f("int8", ends=True),
        "save": lambda f: f("model.caldera"),
        "summary": lambda f: f(show=False),
        "to": lambda f: f("cpu"),
    },
)
METHODS["History"] = (
    history,
    {
        "__getitem__": lambda f: f("loss"),
        "add": lambda f: f(1, {"loss": 0.5}),
        "from_dict": lambda f: f(history().to_dict()),
        "plot": lambda f: f("curve.svg"),
    },
)
METHODS["ArrayData"] = (
    samples,
    {
        "batch": INDICES,
        "batch_order": lambda f: f(1, 0, 2),
        "name_of": lambda f: f(1),
        "order": lambda f: f(1, 0),
        "raw_batch": INDICES,
        "subset": INDICES,
    },
)
METHODS["IterableData"] = (
    lambda: cd.data.IterableData([(x(4), 1), (x(4), 0)]),
    {
        "read": lambda f: f(2),
    },
)
METHODS["Dataset"] = (
    data_set,
    {
        "hold_out": lambda f: f(0.25),
        "transformed": lambda f: f([cd.data.Normalise(0.5, 0.5)]),
    },
)
METHODS["Loader"] = (
    lambda: cd.data.Loader(samples(), 2),
    {
        "batches": lambda f: f(),
        "restore": lambda f: f(cd.data.Loader(samples(), 2).state()),
        "share": lambda f: f(0, 2, 4),
    },
)
METHODS["Pipeline"] = (
    lambda: cd.data.Pipeline(samples()),
    {
        "batch": INDICES,
        "batch_order": lambda f: f(1, 0, 2),
        "example": lambda f: f(),
        "name_of": lambda f: f(1),
        "of": lambda f: f(samples()),
        "order": lambda f: f(1, 0),
        "raw_batch": INDICES,
        "subset": INDICES,
    },
)
METHODS["Dense"] = (
    layer,
    {
        "__call__": lambda f: f(cd.tensor(x(3, 4))),
        "add_loss": lambda f: f(x(3, 4)),
        "add_metric": lambda f: f("mean", x(3, 4)),
        "freeze": lambda f: f(False),
    },
)
METHODS["new Dense"] = (
    lambda: nn.Dense(2),
    {
        "parameter": lambda f: f("more", (2, 3), cd.constant(1.0)),
        "state": lambda f: f("more", (2, 3)),
    },
)
for _name, _given in LAYERS.items():
    _cls = getattr(nn, _name)
    if isinstance(_cls, type) and issubclass(_cls, nn.Layer):
        METHODS[f"nn.{_name}"] = (
            partial(_given, _cls),
            {"__call__": lambda f, cls=_cls: f(*inputs_of(cls.__name__))},
        )
METHODS["new NumberEmbedding"] = (
    lambda: nn.NumberEmbedding([[0.0, 1.0]]),
    {"fit": lambda f: f([[0.0], [1.0], [2.0]], bins=2)},
)
METHODS.update(methods_of_services.METHODS)

CALLED_BY_CALDERA = """
*.after_epoch *.batch_length *.build *.build_for *.device_array *.ensure_built *.evaluation_steps
*.expressions *.expressions_for *.finish *.forward *.get *.host_array *.make *.make_parameters
*.open_expressions *.owned_by *.padded_batch *.parameter *.refuse *.require *.sign_for *.state
*.step_outputs CSVLogger.* Callback.* Checkpointer.* CustomModel.* EarlyStopping.*
Filler.* KeepBest.*
MLflow.* RoundWeights.* Run.* Target.* TensorBoard.* TimeLimit.* WandB.* WeightAverage.*
LearningRates.plot MemoryManager.host MemoryManager.on_device RunFolder.write
audio.NGram.score audio.Utterance.* bench.* code.Program.* comm.*
compress.LowPrecisionWeights.* compress.PowerSGD.* compress.QSGD.* compress.RandomK.*
compress.SparseVector.* compress.TopK.* compress.*.exchange compress.*.exchange_all
compress.*.restore core.memory.* core.tensor.Filler.*
data.*.apply data.*.lazily data.Column.* data.Data.* data.Draw.* data.Files.* data.Schema.*
data.Shards.* data.Share.* data.Tokenizer.check data.Tokenizer.from_plain
dmath.*.of dmath.Distribution.* dmath.Layout.* dmath.Session.*
nn.*.bias_outside nn.*.check_groups nn.*.continued nn.*.convolve nn.*.function nn.*.operation
nn.*.first_bias nn.*.first_states nn.*.make_weights nn.*.pool nn.*.take nn.*.remembered
nn.IntervalLoss.* nn.*.along nn.*.drawn nn.*.merge nn.*.noisy nn.*.windows nn.losses.*
nn.*.step nn.*.weight_shape nn.CTCLoss.* nn.Context.* nn.EnsembleLoss.* nn.SkipGram.* nn.metrics.*
nn.models.GPT.embedded nn.models.GPT.scores onnx.Backend.* onnx.ImportedModel.*
optim.*.check_argument
optim.*.clipped optim.*.decides_by optim.*.direction optim.*.hand_over optim.*.holds
optim.*.kept_for optim.*.kept_shapes optim.*.moments optim.*.next optim.*.prepare
optim.*.pull optim.*.rate optim.*.restore optim.*.update optim.LossScale.adapted
parallel.*
search.*.ask search.*.begin search.*.bracket search.*.first search.*.first_rung search.*.is_beaten
search.*.loss search.*.loss_at search.*.losses search.*.mutated search.*.others_at search.*.random
search.*.rivals search.*.sample_size search.*.sampler search.*.stop search.*.tell search.Dimension.*
search.Objective.* search.Space.walk search.Study.add search.Study.adopt search.Study.remake
search.StudyCallback.* search.TensorBoard.* search.Trial.* sklearn.*
""".split()  # noqa: SIM905 - a table of patterns
"""Hooks of training, of reading data, of searches, and of a plan's run, which Caldera calls; what
needs several ranks, a run or a file; estimators, which scikit-learn's own suite of checks calls."""


def method(made: Made, name: str) -> Callable[..., Any]:
    """A method of an object that is made when it is called."""

    def call(*args: Any, **named: Any) -> Any:
        found = getattr(made(), name)(*args, **named)
        # A generator begins when somebody asks for more.
        return next(found, None) if inspect.isgenerator(found) else found

    call.__signature__ = inspect.signature(getattr(made(), name))  # type: ignore[attr-defined]
    return call


CALLS: dict[str, tuple[Callable[..., Any], Given]] = {
    f"{owner}.{name}": (method(made, name), given)
    for owner, (made, methods) in METHODS.items()
    for name, given in methods.items()
}


def uncalled() -> list[str]:
    """Public methods of public classes, with arguments, that have no call here."""
    called = {
        _function(getattr(type(owner), name, None))
        for owner, methods in ((made(), methods) for made, methods in METHODS.values())
        for name in methods
    }
    return [
        f"{owner}.{name}"
        for owner, cls in public_names().items()
        if inspect.isclass(cls) and not issubclass(cls, Exception)
        for name in dir(cls)
        if not name.startswith("_")
        and _is_ours(getattr(cls, name))
        and _function(getattr(cls, name)) not in called
        and not any(fnmatch(f"{owner}.{name}", each) for each in CALLED_BY_CALDERA)
        and _takes_more(getattr(cls, name))
    ]


def _function(method: Any) -> Any:
    return inspect.unwrap(getattr(method, "__func__", method)) if callable(method) else None


def _is_ours(method: Any) -> bool:
    is_ours = str(getattr(method, "__module__", "")).startswith("caldera.")
    return callable(method) and not inspect.isclass(method) and is_ours


def _takes_more(function: Any) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(each.name != "self" and each.kind is not each.VAR_KEYWORD for each in parameters)
