"""Training steps of transformers, LSTMs and wide layers on a card, beside PyTorch in one process.

    python benchmarks/training/card_transformers.py gpt2 --settings "caldera step,torch compiled"

What `card_training.py` does (the same weights, the same batches, all take turns, the best turn
counts), with networks whose time goes into large products, attention and loops over steps. GPT-2
small has its published sizes. In PyTorch it is made of `nn.Linear`, `nn.LayerNorm` and
`scaled_dot_product_attention`, under bf16 autocast, with the fused AdamW. Losses are compared over
as many steps as `--steps` says.

`--profile` prints how long each kind of call of Caldera's step takes, without any peer.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict

import numpy as np

from benchmarks.training.card_training import STEPS, measure
from caldera import nn
from caldera.bench.frameworks.caldera_tasks import ResidentTrainer
from caldera.bench.workloads import TrainingCase
from caldera.bench.workloads.base import UpdateRule
from caldera.bench.workloads.training import networks
from caldera.compiler.plan.explain import shapes_text
from caldera.nn.layer import Layer

_WORDS, _TOKENS = 50304, 1024
"""The vocabulary of GPT-2, 50,257 words, and what makes it a multiple of 64."""


def _gpt2() -> list[Layer]:
    return nn.models.gpt(_WORDS, context=_TOKENS, width=768, depth=12, heads=12)


def _wide() -> list[Layer]:
    return nn.models.mlp((1024,), hidden=(4096,) * 3, activation="relu", classes=100)


def _two_lstms() -> list[Layer]:
    return [
        nn.Input((200,), dtype="int64"),
        nn.Embedding(64, 512),
        nn.LSTM(512, return_sequences=True),
        nn.LSTM(512, return_sequences=True),
        nn.Dense(64),
    ]


def _mobile() -> list[Layer]:
    """Blocks of a convolution in each channel and one of single pixels, as in MobileNet."""
    layers: list[Layer] = [nn.Input((3, 128, 128))]

    def convolution(filters: int, kernel: int, stride: int, groups: int = 1) -> list[Layer]:
        made = nn.Conv2D(filters, kernel, stride=stride, padding="same", groups=groups, bias=False)
        return [made, nn.BatchNorm(), nn.ReLU()]

    layers += convolution(32, 3, 2)
    channels = 32
    for filters, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers += convolution(channels, 3, stride, groups=channels) + convolution(filters, 1, 1)
        channels = filters
    return [*layers, nn.GlobalAveragePool(), nn.Dense(100)]


def _encoder_decoder() -> list[Layer]:
    """Images made smaller and larger again, of which the mean is classified."""
    layers: list[Layer] = [nn.Input((3, 64, 64))]
    for filters in (32, 64, 128):
        layers += [nn.Conv2D(filters, 4, stride=2, padding=1), nn.ReLU()]
    for filters in (64, 32):
        layers += [nn.ConvTranspose2D(filters, 4, stride=2, padding=1), nn.ReLU()]
    return [
        *layers,
        nn.ConvTranspose2D(16, 4, stride=2, padding=1),
        nn.GlobalAveragePool(),
        nn.Dense(10),
    ]


CASES = {
    case.name: case
    for case in (
        TrainingCase(
            "gpt2",
            layers=_gpt2,
            batch=8,
            shape=(_TOKENS,),
            classes=_WORDS,
            words=_WORDS,
            size="large",
            rule=UpdateRule("adamw", 3e-4, weight_decay=0.01),
            attention=True,
            precisions=("bfloat16",),
        ),
        TrainingCase(
            "mlp-wide",
            layers=_wide,
            batch=8192,
            shape=(1024,),
            classes=100,
            size="large",
            rule=UpdateRule("adamw", 1e-4, weight_decay=0.01),
            precisions=("bfloat16",),
        ),
        TrainingCase(
            "lstm-2x512",
            layers=_two_lstms,
            batch=128,
            shape=(200,),
            classes=64,
            words=64,
            size="medium",
            rule=UpdateRule("adam", 1e-3),
        ),
        TrainingCase(
            "mobile",
            layers=_mobile,
            batch=256,
            shape=(3, 128, 128),
            classes=100,
            size="large",
            rule=UpdateRule("sgd", 0.01, momentum=0.9),
            precisions=("bfloat16",),
        ),
        TrainingCase(
            "encoder-decoder",
            layers=_encoder_decoder,
            batch=128,
            shape=(3, 64, 64),
            classes=10,
            size="medium",
            rule=UpdateRule("adam", 1e-3),
            precisions=("bfloat16",),
        ),
        *(
            case
            for work in networks()
            for case in work.cases
            if isinstance(case, TrainingCase) and case.name in ("gpt", "lstm")
        ),
    )
}


def profile(case: TrainingCase, precision: str) -> None:
    """The calls of a step, those of the same kind and size together, the longest first."""
    trainer = ResidentTrainer(case, "float32", case.data(), "cuda", precision)
    trainer.losses(3)
    plan = trainer._steps.training(next(trainer._epoch))
    found = plan.explain()
    totals: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in found.rows:
        if row.seconds is not None:
            totals[row.op, row.kernel, shapes_text(row)].append(row.seconds)
    print(
        f"\n{case.name}, {precision}: {found.seconds or 0.0:.6f} s in {len(found.rows)} calls, "
        f"arena {found.arena_bytes / 2**20:,.0f} MiB"
    )
    for (op, kernel, shapes), times in sorted(totals.items(), key=lambda each: -sum(each[1])):
        print(
            f"{sum(times) * 1e6:9.1f} us {len(times):4} x {np.median(times) * 1e6:8.1f}  "
            f"{op[:90]:90}  {kernel:12}  {shapes}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", help=", ".join(CASES))
    parser.add_argument("--precision", help="default: the one that each network is measured in")
    parser.add_argument(
        "--settings", default="caldera step,torch compiled,torch CUDA graph", help="the contestants"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="whose losses are compared")
    parser.add_argument("--profile", action="store_true", help="the calls of Caldera's step")
    options = parser.parse_args()
    words = [word.strip() for word in options.settings.split(",") if word.strip()]
    for name in options.networks:
        if name not in CASES:
            sys.exit(f"expected networks among {', '.join(CASES)}; got {name}")
        case = CASES[name].on("cuda")
        precision = options.precision or case.precisions[0]
        if options.profile:
            profile(case, precision)
        else:
            measure(case, precision, words, options.steps, whole=True)


if __name__ == "__main__":
    main()
