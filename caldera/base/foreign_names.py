"""Names of Keras, PyTorch, scikit-learn, Horovod and JAX, and the names of this package for them.

A foreign name is an error that names ours. It is never an alias, since the arguments differ.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

_LOGITS = "it takes logits, without a softmax before it"
_CROSS_ENTROPY = (
    'loss="cross_entropy", or nn.losses.CrossEntropy(): it takes logits, and class numbers or '
    "probabilities as targets"
)
_BINARY = f'loss="binary_cross_entropy", or nn.losses.BinaryCrossEntropy(): {_LOGITS}'
_MEAN_SQUARED = 'loss="mse", or nn.losses.MeanSquared(); the metric is "mse"'
_MEAN_ABSOLUTE = 'loss="mae", or nn.losses.MeanAbsolute(); the metric is "mae"'
_SHARED = "fit(..., parallel=parallel.DataParallel()), which is the default under mpiexec"
_RATE = "optim.Adam(optim.Cosine(1e-3, steps=1000)): the schedule is given to the optimizer"
_STEPS = "optim.StepDecay(initial, factor, every=steps), given to an optimizer"
_FIT = "cd.NeuralNetwork(layers, loss=..., optimizer=...).fit(x, y), which holds the whole loop"
_GRADIENTS = "op.grad(loss, variables), which returns expressions"
_ALL_VALUES = "[each.numpy() for each in model.parameters()], and model.save(path) for a file"

NAMES: dict[str, str] = {
    # --- layers and models
    "linear": "nn.Dense(units): the size of the input is found out",
    "module": "cd.Model with forward, or nn.Layer for a part of a model",
    "functional": "the operations of op, as op.relu(x)",
    "parameter": "self.parameter(name, shape) in build of an nn.Layer",
    "registerparameter": "self.parameter(name, shape) in build",
    "addweight": "self.parameter(name, shape) in build, or self.state(name, shape)",
    "registerbuffer": "self.state(name, shape) in build",
    "call": "forward",
    "conv2dtranspose": "nn.ConvTranspose2D(filters, kernel)",
    "simplernn": "nn.RNN(units)",
    "timedistributed": "the layer itself: nn.Dense works over the last axis of any shape",
    "transformerencoderlayer": "nn.TransformerBlock(heads)",
    "transformerencoder": "nn.Sequential of nn.TransformerBlock(heads)",
    "concatenate": "nn.Concat(axis) as a layer, op.concat(parts, axis) of values",
    "cat": "op.concat(parts, axis)",
    "relu6": "op.clip(x, 0.0, 6.0)",
    "swish": 'nn.SiLU(), or activation="silu"',
    "add": "nn.Sequential([...]) with all layers in one list; values are added with +",
    # --- losses and metrics
    "crossentropyloss": _CROSS_ENTROPY,
    "categoricalcrossentropy": _CROSS_ENTROPY,
    "sparsecategoricalcrossentropy": _CROSS_ENTROPY,
    "logloss": _CROSS_ENTROPY,
    "nllloss": _CROSS_ENTROPY,
    "bce": _BINARY,
    "bceloss": _BINARY,
    "bcewithlogitsloss": _BINARY,
    "binarycrossentropy": _BINARY,
    "mseloss": _MEAN_SQUARED,
    "meansquarederror": _MEAN_SQUARED,
    "l1loss": _MEAN_ABSOLUTE,
    "meanabsoluteerror": _MEAN_ABSOLUTE,
    "smoothl1loss": 'loss="huber", or nn.losses.Huber(delta)',
    "kldivloss": 'loss="kl", or nn.losses.KullbackLeibler(): it takes logits',
    "kldivergence": 'loss="kl", or nn.losses.KullbackLeibler(): it takes logits',
    "acc": 'metrics=["accuracy"], or nn.metrics.Accuracy()',
    "accuracyscore": 'metrics=["accuracy"], or nn.metrics.Accuracy()',
    "binaryaccuracy": 'metrics=["accuracy"], or nn.metrics.Accuracy()',
    "categoricalaccuracy": 'metrics=["accuracy"], or nn.metrics.Accuracy()',
    "sparsecategoricalaccuracy": 'metrics=["accuracy"], or nn.metrics.Accuracy()',
    "topkcategoricalaccuracy": 'metrics=["top_k"], or nn.metrics.TopK(k)',
    "f1score": 'metrics=["f1"], or nn.metrics.F1()',
    "rocaucscore": 'metrics=["auc"], or nn.metrics.AUC()',
    # --- training
    "compile": "cd.NeuralNetwork(layers, loss=..., optimizer=..., metrics=[...]): a model has its "
    "settings when it is made",
    "train": _FIT,
    "eval": "evaluate and predict, which compute the network as it is after training",
    "trainonbatch": "fit(x, y, batch_size=len(x), epochs=1)",
    "partialfit": "fit, which continues where the last one ended",
    "score": "evaluate(x, y)",
    "modelcheckpoint": 'fit(..., checkpoint="folder"), or cd.Checkpointer(folder) as a callback; '
    "cd.KeepBest() keeps the best weights",
    "reducelronplateau": "optim.Adam(optim.ReduceOnPlateau(1e-3))",
    "learningratescheduler": _RATE,
    "lrscheduler": _RATE,
    "lambdacallback": "a class of cd.Callback",
    "callbacks": "cd.Callback, cd.EarlyStopping and their neighbours in cd",
    "terminateonnan": "leave it out: fit stops at a loss that is not finite",
    "autocast": 'precision="bfloat16" of the model',
    "gradscaler": 'precision="float16" of the model, which scales the loss',
    "nograd": "leave it out: no gradient is computed unless op.grad is called",
    "inferencemode": "leave it out: no gradient is computed unless op.grad is called",
    "gradienttape": _GRADIENTS,
    "backward": _GRADIENTS,
    "valueandgrad": _GRADIENTS,
    "zerograd": "leave it out: op.grad returns expressions, and gradients do not accumulate",
    "step": "optim.Adam(1e-3).train(loss, parameters), the updates of a plan of cd.compile",
    "jit": "cd.compile(outputs)",
    "vmap": "leave it out: operations take a leading axis of samples",
    "requiresgrad": "layer.frozen = True for a layer that is not trained",
    "clipgradnorm": "optim.Adam(1e-3, clip=optim.ClipNorm(1.0))",
    "clipgradvalue": "optim.Adam(1e-3, clip=optim.ClipValue(1.0))",
    "paramgroups": "optimizer.learning_rate = 1e-4; groups=[optim.Group(match)] has other rates",
    "statedict": "model.parameters(), and cd.io.save_safetensors or model.save(path) for a file",
    "loadstatedict": "model.load_weights(path)",
    "getweights": _ALL_VALUES,
    "setweights": "each.assign(value) for each of model.parameters()",
    "loadmodel": "cd.load(path)",
    "save": "model.save(path)",
    "load": "model.load_weights(path), or cd.load(path) for a cd.NeuralNetwork",
    # --- optimizers and schedules
    "optimizers": "the classes of optim, as optim.Adam(1e-3)",
    "cosineannealinglr": "optim.Cosine(peak, steps=...), given to an optimizer",
    "cosinedecay": "optim.Cosine(peak, steps=...), given to an optimizer",
    "linearlr": "optim.LinearWarmUp(steps, then=...), given to an optimizer",
    "onecyclelr": "optim.OneCycle(peak, steps), given to an optimizer",
    "steplr": _STEPS,
    "multisteplr": "optim.StepDecay(initial, factor, at=[...]), given to an optimizer",
    "exponentiallr": "optim.Exponential(initial, factor), given to an optimizer",
    "exponentialdecay": "optim.Exponential(initial, factor), given to an optimizer",
    # --- data
    "dataloader": "data.Loader(data, batch_size); fit takes data without one, and PyTorch's too",
    "tensordataset": "data.ArrayData(x, y), or fit(x, y)",
    "datasets": "the data sets of cd.data",
    "imagefolder": "data.images(folder)",
    "imagedatasetfromdirectory": "data.images(folder)",
    "traintestsplit": "data.split((x, y), test=0.2), or fit(..., validation=0.2)",
    "compose": "data.Pipeline(source, stages)",
    "onehotencoder": "data.table(file), which encodes categories; op.one_hot(x, classes)",
    "tocategorical": "op.one_hot(x, classes); the loss takes class numbers as they are",
    "standardscaler": "data.table(file), which scales columns; data.Normalise(mean, std) of bytes",
    # --- values
    "detach": "op.stop_gradient(x)",
    "view": "op.reshape(x, shape)",
    "permute": "op.transpose(x, axes)",
    "cuda": 'model.to("cuda"), or device="cuda"',
    "fromnumpy": "cd.tensor(array)",
    "astensor": "cd.tensor(array)",
    "converttotensor": "cd.tensor(array)",
    "randn": "op.random_normal(shape)",
    "rand": "op.random_uniform(shape)",
    "manualseed": "cd.seed(number), or seed= of a model",
    "setrandomseed": "cd.seed(number), or seed= of a model",
    "xavieruniform": "cd.glorot_uniform()",
    "xaviernormal": "cd.glorot_normal()",
    "kaiminguniform": "cd.he_uniform()",
    "kaimingnormal": "cd.he_normal()",
    # --- several processes
    "distributeddataparallel": _SHARED,
    "distributedoptimizer": _SHARED,
    "distributedgradienttape": _SHARED,
    "initprocessgroup": "leave it out: processes of mpiexec or torchrun find each other",
    "broadcastparameters": "leave it out: fit broadcasts the parameters of rank 0",
    "allreduce": "op.all_sum(x) of values, comm.world().Allreduce of arrays",
    "fullyshardeddataparallel": "fit(..., parallel=parallel.Sharded(stage=3))",
    # --- scikit-learn
    "mlpclassifier": "cd.sklearn.CalderaClassifier()",
    "mlpregressor": "cd.sklearn.CalderaRegressor()",
    "predictproba": "op.softmax(model.predict(x)), or cd.sklearn.CalderaClassifier()",
    "gridsearchcv": "cd.search.run(build, space, data), or cd.sklearn.CalderaSearchCV",
    "randomizedsearchcv": "cd.search.run(build, space, data), or cd.sklearn.CalderaSearchCV",
}
"""Ours for each foreign name, which is in small letters without underscores."""

_FOUND_OUT = "leave it out: sizes of inputs are found out"
ARGUMENTS: dict[str, str] = {
    "lr": "learning_rate=",
    "eta0": "learning_rate=",
    "learning_rate_init": "learning_rate=",
    "betas": "beta1= and beta2=",
    "beta_1": "beta1=",
    "beta_2": "beta2=",
    "eps": "epsilon=",
    "epsilon": "eps=",
    "rho": "smoothing=",
    "alpha": "smoothing=|slope=",
    "negative_slope": "slope=",
    "clipnorm": "clip=optim.ClipNorm(limit)",
    "clipvalue": "clip=optim.ClipValue(limit)",
    "max_norm": "limit=",
    "T_max": "steps=",
    "decay_steps": "steps=",
    "total_steps": "steps=",
    "initial_learning_rate": "initial=|peak=",
    "max_lr": "peak=",
    "gamma": "factor=",
    "decay_rate": "factor=",
    "step_size": "every=",
    "milestones": "at=",
    "out_features": "units=",
    "hidden_size": "units=",
    "out_channels": "filters=",
    "kernel_size": "kernel=|size=",
    "pool_size": "size=",
    "strides": "stride=",
    "dilation_rate": "dilation=",
    "use_bias": "bias=",
    "kernel_initializer": "fill=",
    "depth_multiplier": "multiplier=",
    "p": "rate=",
    "num_heads": "heads=",
    "num_groups": "groups=",
    "num_embeddings": "count=",
    "input_dim": "count=",
    "embedding_dim": "width=",
    "output_dim": "width=",
    "scale_factor": "scale=",
    "dim": "axis=",
    "keepdim": "keepdims=",
    "from_logits": "leave it out: losses take logits",
    "inplace": "leave it out: plans reuse memory automatically",
    "batch_first": "leave it out: the first axis is the sample axis",
    "in_features": _FOUND_OUT,
    "in_channels": _FOUND_OUT,
    "input_size": _FOUND_OUT,
    "input_shape": "nn.Input(shape) as the first layer",
    "num_features": _FOUND_OUT,
    "normalized_shape": _FOUND_OUT,
    "embed_dim": _FOUND_OUT,
    "key_dim": _FOUND_OUT,
    "validation_data": "validation=",
    "validation_split": "validation=",
    "eval_set": "validation=",
    "class_weight": "class_weights=",
    "sample_weight": "sample_weights=",
    "nb_epoch": "epochs=",
    "num_epochs": "epochs=",
    "max_iter": "epochs=",
    "random_state": "seed=",
    "num_workers": "workers= of data.Pipeline",
    "monitor_metric": "monitor=",
    "save_best_only": "cd.KeepBest(), which keeps the best weights",
    "filepath": "folder=",
    "restore_best_weights": "restore_best=",
}
"""Ours for each foreign argument; of several, parted by |, the first that the function has."""

_UNNUMBERED = ("batchnorm", "instancenorm", "globalaveragepool", "globalmaxpool")
"""Layers for any number of axes, which have a number in the names of other packages."""

_rooms: list[str] = []


def bare(name: str) -> str:
    """Return a name in small letters, without underscores and other spellings of the same word.

    >>> bare("MaxPooling2D") == bare("max_pool2d"), bare("BatchNorm2d") == bare("BatchNorm")
    (True, True)
    """
    text = name.lower().replace("_", "").replace("pooling", "pool")
    text = text.replace("normalization", "norm").replace("avg", "average")
    text = re.sub("activation$|loss$|(?<=adam|.sgd)optimizer$", "", text) or text
    return text.removesuffix(text[-2:]) if text[:-2] in _UNNUMBERED else text


def ours(name: str, known: Iterable[str] | None = None) -> str:
    """Return how a foreign name is written here, or "". With `known` it must be one of these.

    >>> ours("Linear")
    'write nn.Dense(units): the size of the input is found out'
    >>> ours("mean_squared_error", ["mae", "mse"]), ours("mean_squared_error", ["relu"])
    ('write loss="mse", or nn.losses.MeanSquared(); the metric is "mse"', '')
    """
    text = NAMES.get(name.lower().replace("_", ""), "")
    if text and known is not None and not set(re.findall(r"\w+", text)) & set(known):
        return ""
    return _written(text)


def our_argument(name: str, known: Iterable[str]) -> str:
    """Return how a foreign argument is written for a function with these arguments, or "".

    >>> our_argument("lr", ["learning_rate"]), our_argument("lr", ["units"])
    ("did you mean 'learning_rate'?", '')
    """
    names = set(known)
    for text in ARGUMENTS.get(name, "").split("|"):
        if text and names.issuperset(re.findall(r"(?<!\w)(\w+)=", text)):
            is_plain = text[:-1].isidentifier()
            return f"did you mean {text[:-1]!r}?" if is_plain else _written(text)
    return ""


def _written(text: str) -> str:
    return text if not text or text.startswith("leave") else f"write {text}"


def answer_foreign(room: dict[str, Any], found: Callable[[str], Any] | None = None) -> None:
    """Give a module the `__getattr__` that returns what `found` finds, else names ours.

    `found` raises a KeyError for a name that it does not have. Called at the end of a module with
    its `globals()`.

    >>> names = {"__name__": "caldera.nn.pages", "__all__": ["Later"]}
    >>> answer_foreign(names, {"Later": 1}.__getitem__)
    >>> names["__getattr__"]("Later")
    1
    """
    module = room["__name__"]
    if module not in _rooms:
        _rooms.append(module)

    def attribute(name: str) -> Any:
        if found is not None:
            try:
                return found(name)
            except KeyError:
                pass
        hint = "" if name.startswith("_") else ours(name) or _spelt(module, name)
        text = f"module {module!r} has no attribute {name!r}"
        # With a name Python adds no suggestion to the message.
        raise AttributeError(f"{text}; {hint}", name=name) if hint else AttributeError(text)

    room["__getattr__"] = attribute


def _spelt(module: str, name: str) -> str:
    """Return the hint for a public name in another spelling, preferring this module."""
    for each in (module, *_rooms):
        for known in _public(each):
            if bare(known) == bare(name) and (known != name or each != module):
                short = each.removeprefix("caldera").removeprefix(".") or "cd"
                return f"write {short}.{known}{_call(getattr(sys.modules[each], known))}"
    return ""


def _call(value: Any) -> str:
    """Return the first positional arguments of a function or class, as a call shows them."""
    if not callable(value):
        return ""
    named = inspect.signature(value).parameters.values()
    names = [each.name for each in named if each.kind is each.POSITIONAL_OR_KEYWORD]
    return f"({', '.join([*names[:3], *['...'][: len(names) - 3]])})"


def _public(module: str) -> Iterable[str]:
    names = vars(sys.modules[module]) if module in sys.modules else {}
    own = (name for name, value in names.items() if isinstance(value, type) and name[0] != "_")
    return names.get("__all__", own)


def missing_attribute(owner: object, name: str) -> Any:
    """Raise the error for an attribute that an object does not have: the `__getattr__` of a class.

    >>> class Model:
    ...     __getattr__ = missing_attribute
    >>> Model().state_dict
    Traceback (most recent call last):
    AttributeError: 'Model' object has no attribute 'state_dict'; write model.parameters(),
    and cd.io.save_safetensors or model.save(path) for a file
    """
    if hasattr(type(owner), name):
        return object.__getattribute__(owner, name)  # a property that raised an AttributeError
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    hint = "" if name.startswith("_") else ours(name) or our_argument(name, dir(type(owner)))
    if not hint and any(name in _public(each) for each in _rooms if each.endswith(".op")):
        hint = f"write op.{name}(x)"
    raise AttributeError(f"{text}; {hint}", name=name) if hint else AttributeError(text)
