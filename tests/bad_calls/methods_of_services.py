"""A valid call of the methods of distributed arrays, studies, data and other objects of a user."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import caldera as cd
from caldera import audio, code, comm, compress, data, dmath, nn, op, optim, search
from tests.bad_calls import calls_of_services as services
from tests.bad_calls.calls_of_op import labels, x
from tests.bad_calls.damage import Given

Made = Callable[[], Any]


@cache
def study() -> search.Study:
    return services.study()


@cache
def space() -> search.Space:
    return search.Space(services.table())


def words() -> code.Vocabulary:
    return code.Vocabulary(["<unknown>", "a", "b"], [0, 1, 1])


def step() -> Any:
    return op.var("step", (), fill=cd.constant(3.0))


def loss(variable: Any) -> Any:
    return op.sum(variable * variable)


@cache
def variable() -> Any:
    return op.var("v", (2,), fill=x(2))


REDUCED: dict[str, Given] = {
    name: lambda f: f(axis=1, keepdims=True)
    for name in ("max", "mean", "min", "prod", "std", "sum", "var")
}
METHODS: dict[str, tuple[Made, dict[str, Given]]] = {
    "dmath.Array": (
        services.array,
        {
            **REDUCED,
            "argmax": lambda f: f(1),
            "argmin": lambda f: f(1),
            "astype": lambda f: f("float32"),
            "cumsum": lambda f: f(1),
            "dot": lambda f: f(x(3)),
            "draw": lambda f: f("layout.svg"),
            "reshape": lambda f: f(3, 4),
            "to": lambda f: f(dmath.Columns()),
            "to_pandas": lambda f: f(["a", "b", "c"]),
            "transpose": lambda f: f(1, 0),
            "__getitem__": lambda f: f((1, slice(2))),
            "__add__": lambda f: f(2.0),
            "__matmul__": lambda f: f(x(3, 2)),
        },
    ),
    "dmath.Session": (
        services.session,
        {"limit_cache": lambda f: f(1 << 20)},
    ),
    "search.Study": (
        study,
        {
            "losses": lambda f: f(study().trials[0]),
            "model_of": lambda f: f(study().trials[0]),
            "of_state": lambda f: f("complete"),
            "page": lambda f: f("study.html"),
            "plot": lambda f: f("study.svg"),
            "seconds_to": lambda f: f(0.5),
        },
    ),
    "search.Space": (
        space,
        {
            "at": lambda f: f({"rate": 0.5}),
            "check_build": lambda f: f(services.loss_of),
            "decoded": lambda f: f({"rate": 0.5}),
            "draw": lambda f: f(np.random.default_rng(0)),
            "near": lambda f: f({"rate": 0.5}, np.random.default_rng(0), width=0.1),
        },
    ),
    "search.Constraint": (
        lambda: search.at_most("seconds", 1.0),
        {"violated": lambda f: f({"seconds": 2.0})},
    ),
    "RunFolder": (lambda: cd.RunFolder("missing"), {"model_file": lambda f: f("model")}),
    "MemoryManager": (
        lambda: cd.MemoryManager(8),
        {
            "adopt": lambda f: f(np.zeros(4)),
            "copy_from": lambda f: f(cd.MemoryManager(8), 4, 0, 0),
            "prefetch": lambda f: f("device"),
            "set": lambda f: f(1, 2),
        },
    ),
    "audio.NGram": (
        lambda: audio.NGram(["ab", "b"], 2),
        {"sentence": lambda f: f("ab b")},
    ),
    "code.Embedding": (
        lambda: code.Embedding(words(), np.eye(3)),
        {
            "analogy": lambda f: f("a", "b", "a", 1),
            "load": lambda f: f("missing"),
            "nearest": lambda f: f("a", 1),
            "save": lambda f: f("vectors"),
            "similarities": lambda f: f(1),
            "similarity": lambda f: f("a", "b"),
        },
    ),
    "code.Vocabulary": (
        words,
        {"numbers": lambda f: f(["a", "c"]), "of": lambda f: f(["a", "b", "a"], 1)},
    ),
    "comm.SingleProcess": (
        comm.SingleProcess,
        {
            "Allgather": lambda f: f(x(3), x(3)),
            "Allreduce": lambda f: f(x(3), x(3), "sum"),
            "Alltoall": lambda f: f(x(3), x(3)),
            "Bcast": lambda f: f(x(3), 0),
            "Reduce": lambda f: f(x(3), x(3), 0, "sum"),
            "Split": lambda f: f(0, 0),
            "along": lambda f: f("data"),
            "bcast_object": lambda f: f("value", 0),
            "gather_objects": lambda f: f("value"),
        },
    ),
    "comm.Mesh": (
        lambda: comm.Mesh(comm.SingleProcess(), {"data": 1}),
        {"axis": lambda f: f("data"), "together": lambda f: f("data")},
    ),
    "compress.Link": (
        compress.Link,
        {"measured": lambda f: f(comm.SingleProcess()), "seconds": lambda f: f(100.0, 2)},
    ),
    "data.RaggedData": (
        lambda: data.RaggedData([x(4, 2), x(3, 2)], labels(2), buckets=2),
        {
            "batch": lambda f: f(np.array([0, 1])),
            "batch_order": lambda f: f(1, 0, 2),
            "order": lambda f: f(1, 0),
            "padding": lambda f: f(2, 0, 0),
            "raw_batch": lambda f: f(np.array([0, 1])),
            "subset": lambda f: f([0]),
        },
    ),
    "data.ItemData": (
        lambda: data.ItemData([(x(4), 1), (x(4), 0)]),
        {
            "batch": lambda f: f(np.array([0, 1])),
            "raw_batch": lambda f: f(np.array([0, 1])),
            "subset": lambda f: f([0]),
        },
    ),
    "data.Normalise": (
        lambda: data.Normalise(0.5, 0.5),
        {"of": lambda f: f(data.ArrayData(x(4, 3), labels(4)))},
    ),
    "data.SubtractMean": (
        lambda: data.SubtractMean(x(3)),
        {"of": lambda f: f(data.ArrayData(x(4, 3), labels(4)))},
    ),
    "data.Tokenizer": (
        lambda: data.Tokenizer("words", 4, ("a", "b")),
        {
            "decode": lambda f: f([2, 3]),
            "encode": lambda f: f(["a b"]),
            "fit": lambda f: f(["a b", "b"], "words", size=4, length=4),
            "transform": lambda f: f(["a b"]),
        },
    ),
    "nn.models.GPT": (
        lambda: nn.models.GPT(5, 8, 8, 1, 2),
        {"generate": lambda f: f([1, 2], 2, temperature=1.0, seed=0)},
    ),
    "nn.Rescale": (nn.Rescale, {"fit": lambda f: f(x(4, 4))}),
    "optim.Adam": (
        lambda: optim.Adam(0.1),
        {
            "minimize": lambda f: f(loss(variable()), [variable()], steps=1),
            "train": lambda f: f(loss(variable()), [variable()]),
            "apply": lambda f: f([variable()], [variable() * 2.0]),
        },
    ),
    "optim.LossScale": (
        optim.LossScale,
        {"scaled": lambda f: f(step() * 2.0), "unscaled": lambda f: f([step() * 2.0])},
    ),
}
