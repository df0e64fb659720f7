"""Further kinds of random networks for `networks.py`: of words, signals and branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.fuzz.settings import Made

if TYPE_CHECKING:
    from tests.fuzz.networks import Drawn

WORDS = 19


def words(drawn: Drawn, results: int) -> list[Made]:
    """Embeddings of words, padded with 0 or not, and layers over sequences."""
    random, sizes = drawn.random, drawn.sizes
    length, width = drawn.size(sizes.length), drawn.size(sizes.width // 8)
    masked = random.random() < 0.4
    named: dict[str, Any]
    found = [Made("Input", ((length,),), {"dtype": "int64"})]
    found.append(Made("Embedding", (WORDS, width), {"mask_zero": True} if masked else {}))
    if not masked and random.random() < 0.5:
        found.append(Made("PositionalEmbedding", (length,)))
    if masked:
        # A mask goes to a layer that takes one.
        kind = random.choice(("LSTM", "GRU", "MeanPooling"))
        units = drawn.size(sizes.width // 8)
        named = {"bidirectional": random.random() < 0.5, "go_backwards": random.random() < 0.3}
        found.append(Made(kind) if kind == "MeanPooling" else Made(kind, (units,), named))
        return [*found, Made("Dense", (results,))]
    for _ in range(drawn.depth()):
        if random.random() < 0.5:
            heads = [n for n in (1, 2, 4) if width % n == 0]
            named = {"causal": random.random() < 0.5, "ratio": 2.0}
            found.append(Made("TransformerBlock", (random.choice(heads),), named))
            drawn.work += length * width**2 * 8
        else:
            found.append(Made("RMSNorm"))
    found += random.choice(([Made("RNN", (drawn.size(sizes.width // 8),))], [Made("Flatten")]))
    return [*found, Made("Dense", (results,))]


def signal(drawn: Drawn, results: int) -> list[Made]:
    """Convolutions over one axis or three."""
    random, sizes = drawn.random, drawn.sizes
    axes = random.choice((1, 3))
    channels = drawn.size(sizes.channels // axes)
    side = [drawn.size(sizes.side, 3) for _ in range(axes)]
    found = [Made("Input", ((channels, *side),))]
    for _ in range(min(drawn.depth(), 3)):
        filters, kernel = drawn.size(sizes.channels // axes), random.choice((1, 2, 3))
        named = {"padding": random.randint(0, kernel // 2), "stride": random.choice((1, 1, 2))}
        side = [(n + 2 * named["padding"] - kernel) // named["stride"] + 1 for n in side]
        found.append(Made(f"Conv{axes}D", (filters, kernel), {**named, **drawn.activation()}))
        found += random.choice(([], [Made("BatchNorm")], [Made("PReLU")]))
        if min(side) >= 4:
            found.append(Made(f"{random.choice(('Max', 'Average'))}Pool{axes}D", (2,)))
            side = [n // 2 for n in side]
        drawn.work += float(channels * filters * kernel**axes * _product(side))
        channels = filters
        if min(side) < 3:
            break
    return [*found, Made("Flatten"), Made("Dense", (results,))]


def branches(drawn: Drawn, results: int) -> list[Made]:
    """Images through several layers at once; groups and dilation, norms and pools of all kinds."""
    random, sizes = drawn.random, drawn.sizes
    channels = drawn.size(sizes.channels // 2)
    side = [drawn.size(sizes.side, 4) for _ in range(2)]
    found = [Made("Input", ((channels, *side),))]
    for _ in range(min(drawn.depth(), 3)):
        parts: list[Any] = []
        total = 0
        for _ in range(random.randint(1, 3)):
            filters, kernel = drawn.size(sizes.channels // 2), random.choice((1, 3, 5))
            dilation = random.choice((1, 1, 2))
            groups = [n for n in (1, 1, 2, 3) if channels % n == 0 and filters % n == 0]
            named = {
                "padding": dilation * (kernel // 2),
                "dilation": dilation,
                "groups": random.choice(groups),
                **drawn.activation(),
            }
            parts.append(Made("Conv2D", (filters, kernel), named))
            total += filters
            drawn.work += float(channels * filters * kernel**2 * _product(side))
        found.append(Made("Branches", (parts,)) if len(parts) > 1 else parts[0])
        channels = total
        found += random.choice(
            (
                [],
                [Made("InstanceNorm", (), {"affine": True})],
                [Made("LocalResponseNorm")],
                [Made("PReLU", (), {"per_channel": True})],
                [Made("BatchNorm")],
            )
        )
        if min(side) >= 4 and random.random() < 0.5:
            named = {"stride": random.choice((1, 2)), "padding": random.choice((0, 1))}
            found.append(Made(random.choice(("MaxPool2D", "AveragePool2D")), (3,), named))
            side = [(n + 2 * named["padding"] - 3) // named["stride"] + 1 for n in side]
        elif max(side) <= sizes.side // 2:
            mode = random.choice(("nearest", "bilinear"))
            found.append(Made("UpSampling2D", (2,), {"mode": mode}))
            side = [2 * n for n in side]
    last = random.choice((Made("GlobalAveragePool"), Made("Flatten")))
    return [*found, last, Made("Dense", (results,))]


def _product(side: list[int]) -> int:
    found = 1
    for n in side:
        found *= n
    return found


VARIED = (words, signal, branches)
