"""A valid call of each function and class of the other public rooms."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

import caldera as cd
from caldera import compress, nn, op, optim
from caldera.comm import SingleProcess, Traffic
from caldera.parallel import planner
from tests.bad_calls import calls_of_applications
from tests.bad_calls.calls_of_op import labels, x
from tests.bad_calls.damage import Given


def find(name: str) -> Callable[..., Any]:
    """What has this name: `nn.Dense`, `load`."""
    room, _, last = f"caldera.{name}".rpartition(".")
    found: Callable[..., Any] = getattr(import_module(room), last)
    return found


def samples() -> cd.data.ArrayData:
    return cd.data.ArrayData(x(8, 4), labels(8))


def model() -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((4,)), nn.Dense(2)])


def sparse() -> compress.SparseVector:
    return compress.SparseVector(8, np.array([1, 3], np.int64), np.array([1.0, 2.0], np.float32))


NO_ARGUMENTS = [
    "SELU",
    "Add",
    "Flatten",
    "GlobalAveragePool",
    "HardSigmoid",
    "HardSwish",
    "Mish",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Tanh",
    "ELU",
    "GELU",
    "RBF",
    "LeakyReLU",
    "PReLU",
    "InstanceNorm",
    "RMSNorm",
    "LogSoftmax",
    "Softmax",
    "BatchNorm",
    "LayerNorm",
    "Dropout",
    "Concat",
    "LocalResponseNorm",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "AveragePool1D",
    "AveragePool2D",
    "AveragePool3D",
    "UpSampling2D",
    "MeanPooling",
    "GlobalMaxPool",
    "UpSampling",
    "Identity",
    "GaussianNoise",
    "GaussianDropout",
    "SpatialDropout",
    "AlphaDropout",
    "FeatureAlphaDropout",
    "CELU",
    "RReLU",
    "LPPool",
    "Subtract",
    "Multiply",
    "Average",
    "Maximum",
    "Minimum",
    "Dot",
    "UnitNorm",
    "Rescale",
    "Output",
]
_UNITS = ("GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell", "Dense", "FullyConnected")
LAYERS: dict[str, Given] = {
    **{name: lambda f: f() for name in NO_ARGUMENTS},
    **{name: lambda f: f(3) for name in _UNITS},
    "Activation": lambda f: f("relu"),
    **{
        name: lambda f: f(2)
        for name in (
            "AdaptiveAveragePool",
            "AdaptiveAveragePool2D",
            "AdaptiveMaxPool",
            "ChannelShuffle",
            "Cropping",
            "Padding",
            "PixelShuffle",
            "PixelUnshuffle",
            "RepeatVector",
            "Unfold",
        )
    },
    "Lambda": lambda f: f(op.square),
    "Permute": lambda f: f((2, 1)),
    "Bilinear": lambda f: f(3),
    "Fold": lambda f: f((5, 5), 2),
    "TimeDistributed": lambda f: f(nn.Dense(3)),
    "Bidirectional": lambda f: f(nn.GRU(3)),
    "SkipGram": lambda f: f([3, 1]),
    "Branches": lambda f: f([nn.Dense(2), nn.Dense(3)]),
    "Cell": lambda f: f([[0], [0, 1]], [nn.Dense(4), nn.Dense(4), nn.Dense(4)]),
    "BinaryConv2D": lambda f: f(3, 3),
    "BinaryDense": lambda f: f(3),
    "Blend": lambda f: f([nn.Dense(3)], [1.0]),
    "Interval": lambda f: f(nn.Dense(1), nn.Dense(2), [0.0, 0.0]),
    "Int8Conv2D": lambda f: f(3, 3),
    "Int8Dense": lambda f: f(3),
    "TernaryConv2D": lambda f: f(3, 3),
    "TernaryDense": lambda f: f(3),
    "PackedConv2D": lambda f: f(3, 3),
    "PackedDense": lambda f: f(3),
    "ColumnEmbedding": lambda f: f([(1, 4)], 2),
    "Conv1D": lambda f: f(3, 3),
    "Conv2D": lambda f: f(3, 3),
    "Conv3D": lambda f: f(3, 3),
    "ConvTranspose1D": lambda f: f(3, 3),
    "ConvTranspose2D": lambda f: f(3, 3),
    "ConvTranspose3D": lambda f: f(3, 3),
    "ConvLSTM1D": lambda f: f(3, 3),
    "ConvLSTM2D": lambda f: f(3, 3),
    "ConvLSTM3D": lambda f: f(3, 3),
    "DepthwiseConv1D": lambda f: f(3),
    "DepthwiseConv2D": lambda f: f(3),
    "SeparableConv1D": lambda f: f(3, 3),
    "SeparableConv2D": lambda f: f(3, 3),
    "CTCLoss": lambda f: f(blank=0, labels=3),
    "ctc_targets": lambda f: f([[1, 2], [3]], [9, 8]),
    "Embedding": lambda f: f(5, 3),
    "EnsembleDense": lambda f: f(3, 4),
    "EnsembleLoss": lambda f: f("mean_squared"),
    "IntervalLoss": lambda f: f("mean_squared"),
    "NumberEmbedding": lambda f: f([[0.0, 1.0]], 2),
    "GroupNorm": lambda f: f(2),
    "Input": lambda f: f((4,)),
    "MultiHeadAttention": lambda f: f(2),
    "Pooling2D": lambda f: f("max"),
    "PositionalEmbedding": lambda f: f(7),
    "Reshape": lambda f: f((2, 2)),
    "Residual": lambda f: f([nn.Dense(4)]),
    "Sequential": lambda f: f([nn.Dense(4)]),
    "TransformerBlock": lambda f: f(2),
    "TransformerDecoderBlock": lambda f: f(2),
    "SpectralNorm": lambda f: f(nn.Dense(3)),
    "count_parameters": lambda f: f([nn.Input((4,)), nn.Dense(2)], (4,)),
    "from_config": lambda f: f({"layer": "Dense", "units": 3}),
    "gradient_penalty": lambda f: f(op.square, x(2, 3)),
    "to_config": lambda f: f(nn.Dense(3)),
    "network": lambda f: f([nn.Dense(3)]),
    "register": lambda f: f(nn.Dense),
    "trace": lambda f: f(),
}
MODELS: dict[str, Given] = {
    "GPT": lambda f: f(5, 8, 8, 1, 2),
    "GoogLeNet": lambda f: f(3),
    "Inception3": lambda f: f(3),
    "PaddedShortcut": lambda f: f(8, 2),
    "gpt": lambda f: f(5, 8, width=8, depth=1, heads=2),
    "lstm_classifier": lambda f: f(5, 4, 3, 4, 4),
    "text_classifier": lambda f: f(5, 4, 3, 4),
    "load_huggingface": lambda f: f([nn.Input((4,)), nn.Dense(2)], "missing.safetensors"),
    "load_torchvision": lambda f: f([nn.Input((4,)), nn.Dense(2)], "missing.safetensors"),
    "torchvision_names": lambda f: f(nn.models.resnet18((3, 32, 32), 3)),
    **{
        name: lambda f: f((3, 32, 32), 3)
        for name in [
            "alexnet",
            "googlenet",
            "inception3",
            "lenet5",
            "mlp",
            "resnet18",
            "resnet20",
            "resnet34",
            "resnet50",
            "resnet56",
            "vgg16",
            "vgg19",
        ]
    },
}
LOSSES: dict[str, Given] = {
    **{
        name: lambda f: f()
        for name in (
            "Contrastive",
            "CosineDistance",
            "CrossEntropy",
            "Dice",
            "Focal",
            "Huber",
            "KullbackLeibler",
            "Poisson",
            "Quantile",
            "Triplet",
            "Tversky",
        )
    },
    "FunctionLoss": lambda f: f(op.sub),
    "PredictionKind": lambda f: f("regression"),
    "Task": lambda f: f("regression"),
    "as_loss": lambda f: f("mse"),
}
METRICS: dict[str, Given] = {
    **{
        name: lambda f: f()
        for name in [
            "F1",
            "Accuracy",
            "ConfusionMatrix",
            "Precision",
            "Recall",
            "AUC",
            "TopK",
            "R2",
            "MeanSquaredError",
            "RootMeanSquaredError",
            "MeanAbsolutePercentageError",
            "Pearson",
            "FBeta",
            "IoU",
            "CharacterErrorRate",
            "WordErrorRate",
        ]
    },
    "edit_distance": lambda f: f("ab", "abc"),
    "error_rate": lambda f: f(["a b"], ["a c"], unit="word"),
}
OPTIM: dict[str, Given] = {
    **{
        name: lambda f: f(0.1, weight_decay=0.1, clip=optim.ClipNorm(1.0), accumulate=1, groups=())
        for name in [
            "LAMB",
            "LARS",
            "SGD",
            "ASGD",
            "Adadelta",
            "Adafactor",
            "Muon",
            "RAdam",
            "Rprop",
            "Adagrad",
            "Adam",
            "AdamW",
            "Adamax",
            "Lion",
            "Nadam",
            "RMSProp",
            "GradientDescent",
        ]
    },
    **{name: lambda f: f(0.1) for name in ["L1", "L2", "Decoupled", "ClipNorm", "ClipValue"]},
    "LBFGS": lambda f: f(0.1, history=3, line_search=None, most_trials=4),
    "Cosine": lambda f: f(0.1, 10),
    "Exponential": lambda f: f(0.1, 0.5),
    "Group": lambda f: f("bias"),
    "GrowingBatch": lambda f: f(4),
    "LinearWarmUp": lambda f: f(5, 0.1),
    "LossScale": lambda f: f(),
    "MinimizeResult": lambda f: f(1.0, 2, True),
    "OneCycle": lambda f: f(0.1, 10),
    "ReduceOnPlateau": lambda f: f(0.1),
    "StepDecay": lambda f: f(0.1, every=3),
    "get": lambda f: f("adam", learning_rate=0.1),
    "length": lambda f: f(x(3)),
    "total": lambda f: f(x(3)),
}
DATA: dict[str, Given] = {
    "ArrayData": lambda f: f(x(8, 4), labels(8)),
    "Colour": lambda f: f(0.1, 0.1, 0.1),
    "Column": lambda f: f("a", "number", 0),
    "Crop": lambda f: f(4),
    "Cutout": lambda f: f(2),
    "Dataset": lambda f: f(samples(), samples(), 2, ("a", "b"), "mine"),
    "Decode": lambda f: f(),
    "Draw": lambda f: f(),
    "Files": lambda f: f([]),
    "ItemData": lambda f: f([(x(4), 1), (x(4), 0)]),
    "IterableData": lambda f: f([(x(4), 1), (x(4), 0)]),
    "Loader": lambda f: f(samples(), 2),
    "Mirror": lambda f: f(),
    "Mixup": lambda f: f(),
    "Normalise": lambda f: f(0.5, 0.5),
    "OneHot": lambda f: f(3),
    "Pipeline": lambda f: f(samples()),
    "RaggedData": lambda f: f([x(4, 2), x(3, 2)], labels(2), buckets=2),
    "Rotate": lambda f: f(10.0),
    "Schema": lambda f: f(),
    "Shards": lambda f: f("missing"),
    "Share": lambda f: f(0, 0, 8, 2, 2),
    "SubtractMean": lambda f: f(x(4)),
    "Tokenizer": lambda f: f("words", 4, ("a", "b")),
    "arrays": lambda f: f(x(8, 4), labels(8)),
    "as_data": lambda f: f((x(8, 4), labels(8))),
    "cifar10": lambda f: f("missing", download=False),
    "cifar100": lambda f: f("missing", download=False),
    "mnist": lambda f: f("missing", download=False),
    "csv": lambda f: f("missing.csv"),
    "csv_inputs": lambda f: f("missing.csv"),
    "table": lambda f: f("missing.csv"),
    "table_inputs": lambda f: f("missing.csv"),
    "digits": lambda f: f(),
    "images": lambda f: f("missing"),
    "npz": lambda f: f("missing.npz"),
    "source": lambda f: f("missing.npy"),
    "split": lambda f: f((x(8, 4), labels(8))),
    "texts": lambda f: f(["a b", "b", "c", "d"], ["x", "y", "x", "y"]),
    "windows": lambda f: f(x(40), past=4, future=2),
    "write_shards": lambda f: f("shards", samples()),
}
FRONT: dict[str, Given] = {
    "Checkpointer": lambda f: f("folder"),
    "EarlyStopping": lambda f: f(),
    "KeepBest": lambda f: f(),
    "MemoryManager": lambda f: f(8),
    "NeuralNetwork": lambda f: f(
        [nn.Input((4,)), nn.Dense(2)],
        loss="cross_entropy",
        optimizer="adam",
        learning_rate=0.1,
        batch_size=2,
        epochs=1,
        metrics=None,
        loss_weights=None,
        dtype="float32",
        precision=None,
        seed=0,
        device=None,
        name="",
    ),
    "RoundWeights": lambda f: f(),
    "RunFolder": lambda f: f("missing"),
    "Target": lambda f: f("loss", 0.1),
    "Tensor": lambda f: f((2, 3)),
    "TensorBoard": lambda f: f("folder"),
    "CSVLogger": lambda f: f("log.csv"),
    "MLflow": lambda f: f("houses"),
    "WandB": lambda f: f("houses"),
    "TimeLimit": lambda f: f(3.0),
    "WeightAverage": lambda f: f(0.9),
    "check_model_gradients": lambda f: f(model(), x(2, 4), labels(2), samples=2),
    "compile": lambda f: f(op.input("x", (2,)) * 2),
    "constant": lambda f: f(1.5),
    "device": lambda f: f("cpu"),
    "diagonal": lambda f: f(x(3)),
    "from_array": lambda f: f(x(3)),
    "from_dlpack": lambda f: f(x(3)),
    "load": lambda f: f("missing.caldera"),
    "normal": lambda f: f(),
    "orthogonal": lambda f: f(),
    "pinned": lambda f: f("cpu"),
    "seed": lambda f: f(3),
    "core.tensor.seed": lambda f: f(3),
    "tensor": lambda f: f([1.0, 2.0]),
    "uniform": lambda f: f(),
    "testing.check_gradients": lambda f: f(lambda *a: a[0] * a[0], [x(2)]),
    "onnx.load": lambda f: f("missing.onnx"),
    "onnx.export": lambda f: f(model(), "model.onnx"),
    "export.c": lambda f: f(model(), "wing", build=False),
    "core.memory.register_device": lambda f: f("cpu2", lambda index: None),
}
IO: dict[str, Given] = {
    "load_npy": lambda f: f("missing.npy"),
    "load_npz": lambda f: f("missing.npz"),
    "load_safetensors": lambda f: f("missing.safetensors"),
    "load_safetensors_metadata": lambda f: f("missing.safetensors"),
    "map_npy": lambda f: f("missing.npy"),
    "map_safetensors": lambda f: f("missing.safetensors"),
    "read_csv": lambda f: f("missing.csv"),
    "save_npy": lambda f: f("a.npy", x(3)),
    "save_npz": lambda f: f("a.npz", {"a": x(3)}),
    "save_safetensors": lambda f: f("a.safetensors", {"a": x(3)}, {"by": "me"}),
    "write_csv": lambda f: f("a.csv", x(3, 2), ["a", "b"]),
}
COMPRESS: dict[str, Given] = {
    **{
        name: lambda f: f()
        for name in ["QSGD", "Cast", "Link", "Lossless", "LowPrecisionWeights", "OneBit"]
    },
    **{name: lambda f: f() for name in ["PowerSGD", "RandomK", "TernGrad", "TopK"]},
    "SparseVector": lambda f: f(8, np.array([1, 3]), np.array([1.0, 2.0], np.float32)),
    "predicted_seconds": lambda f: f(100, 10, 4, 32.0),
    "redistribute": lambda f: f([{"residual/a": x(3)}, {"residual/a": x(3)}], 1),
    "sparse_allreduce": lambda f: f(sparse(), SingleProcess()),
}
COMM: dict[str, Given] = {
    "Count": lambda f: f(),
    "Mesh": lambda f: f(SingleProcess(), {"data": 1}),
    "SingleProcess": lambda f: f(Traffic()),
    "run_virtual_ranks": lambda f: f(2, lambda comm: comm.rank, [0, 0]),
}
PARALLEL: dict[str, Given] = {
    **{
        name: lambda f: f()
        for name in [
            "DataParallel",
            "ElasticAveraging",
            "Ensemble",
            "Gossip",
            "Hogwild",
            "Layouts",
            "LocalSGD",
            "ParameterServer",
            "PipelineParallel",
            "Sharded",
            "TensorParallel",
        ]
    },
    "Hybrid": lambda f: f({"data": 1, "model": 1}),
    "plan": lambda f: f(model(), ranks=2, link="1 GB/s", batch_size=8, speed="1 GFLOP/s"),
}
PLANNER: dict[str, Given] = {
    "Wire": lambda f: f(1e-6, 1e9),
    "Cluster": lambda f: f(4, planner.Wire(1e-6, 1e9)),
    "Compute": lambda f: f(((1.0, 0.1), (8.0, 0.5))),
    "measured_wire": lambda f: f(SingleProcess()),
    "workload_of": lambda f: f(model()),
}
ROOMS = {
    "": FRONT,
    "nn.": LAYERS,
    "nn.models.": MODELS,
    "nn.losses.": LOSSES,
    "nn.metrics.": METRICS,
    "optim.": OPTIM,
    "data.": DATA,
    "io.": IO,
    "compress.": COMPRESS,
    "comm.": COMM,
    "parallel.": PARALLEL,
    "parallel.planner.": PLANNER,
    "audio.": calls_of_applications.AUDIO,
    "code.": calls_of_applications.CODE,
}
CALLS: dict[str, Given] = {
    prefix + name: given for prefix, room in ROOMS.items() for name, given in room.items()
}
