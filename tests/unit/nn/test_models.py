"""The zoo: parameter counts, shapes, and forward values of the published definitions."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.errors import CalderaError, ConfigError, ShapeError

models = nn.models

# Published: torchvision's table of models; for GoogLeNet without batch normalisation those of the
# model that came with the paper, for LeNet-5 and CIFAR's networks those of the layers' sizes.
COUNTS: list[tuple[Callable[..., list[nn.Layer]], dict[str, Any], int]] = [
    (models.mlp, {}, 784 * 528 + 528 + 2 * (528 * 528 + 528) + 528 * 10 + 10),
    (models.lenet5, {}, 61_706),
    (models.alexnet, {}, 61_100_840),
    (models.vgg16, {}, 138_357_544),
    (models.vgg19, {}, 143_667_240),
    (models.googlenet, {}, 13_004_888),
    (models.googlenet, {"auxiliary": False}, 6_624_904),
    (models.googlenet, {"batch_norm": False}, 13_378_280),
    (models.googlenet, {"batch_norm": False, "auxiliary": False}, 6_998_552),
    (models.inception3, {}, 27_161_264),
    (models.inception3, {"auxiliary": False}, 23_834_568),
    (models.resnet18, {}, 11_689_512),
    (models.resnet34, {}, 21_797_672),
    (models.resnet50, {}, 25_557_032),
    (models.resnet20, {}, 269_722),
    (models.resnet56, {}, 853_018),
]


@pytest.mark.parametrize(
    ("make", "settings", "count"), COUNTS, ids=lambda each: getattr(each, "__name__", None)
)
def test_parameter_counts(
    make: Callable[..., list[nn.Layer]], settings: dict[str, Any], count: int
) -> None:
    assert nn.count_parameters(make(**settings)) == count


def _trace(layers: Sequence[nn.Layer], shape: tuple[int, ...], **circumstances: Any) -> Any:
    with nn.trace(allocate=False, **circumstances):
        return nn.network(layers)(op.input("x", shape))


@pytest.mark.parametrize(
    ("layers", "shape", "result"),
    [
        (models.mlp((2, 3), 4, hidden=(5,), dropout=0.1), (2, 2, 3), (2, 4)),
        (models.lenet5((3, 32, 32), 7, "tanh", "average"), (2, 3, 32, 32), (2, 7)),
        (models.alexnet((3, 64, 64), 7), (2, 3, 64, 64), (2, 7)),
        (models.vgg16((3, 32, 48), 7), (2, 3, 32, 48), (2, 7)),
        (models.vgg19((3, 32, 48), 7), (2, 3, 32, 48), (2, 7)),
        (models.resnet34((3, 40, 40), 7), (2, 3, 40, 40), (2, 7)),
        (models.resnet56((3, 24, 24), 7), (2, 3, 24, 24), (2, 7)),
        (models.googlenet((3, 50, 60), 7, auxiliary=False), (2, 3, 50, 60), (2, 7)),
        (models.inception3((3, 75, 75), 7, auxiliary=False), (2, 3, 75, 75), (2, 7)),
    ],
)
def test_other_input_sizes_and_classes(
    layers: list[nn.Layer], shape: tuple[int, ...], result: tuple[int, ...]
) -> None:
    assert _trace(layers, shape).shape == result


def test_another_input_than_declared_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"0-Input: expected samples of shape \(3, 224, 224\)"):
        _trace(models.resnet18(), (2, 3, 32, 32))


# --- forward values


def published_value(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Some weights for the parameter of this (torchvision) name, of PyTorch's shape."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("running_var") or (len(shape) == 1 and name.endswith("weight")):
        return generator.uniform(0.5, 1.5, shape)
    if len(shape) == 1:
        return generator.uniform(-0.1, 0.1, shape)
    return generator.uniform(-1, 1, shape) * np.sqrt(6 / np.prod(shape[1:]))


def _begin_with_zeros(net: nn.Layer) -> None:
    """The first weights are overwritten, so making random ones would be wasted time."""
    for layer in net.walk():
        if "fill" in vars(layer):
            layer.fill = "zero"  # type: ignore[attr-defined]


def _outputs(layers: list[nn.Layer], shape: tuple[int, ...], **circumstances: Any) -> Any:
    net = nn.network(layers)
    _begin_with_zeros(net)
    for layer in net.walk():
        if isinstance(layer, nn.Dropout):
            layer.rate = 0.0
    x = np.random.default_rng(0).uniform(-1, 1, shape)
    with nn.trace(dtype="float64", **circumstances):
        result = net(x)
    for name, variable, transposed in models.torchvision_names(net):
        theirs = variable.shape[::-1] if transposed else variable.shape
        value = published_value(name, theirs)
        variable.assign(value.T if transposed else value)
    named = result if isinstance(result, dict) else {"main": result}
    plan = cd.compile(list(named.values()))
    return {
        name: value.numpy()[-1, :3].tolist() for name, value in zip(named, plan.run(), strict=True)
    }


# Obtained with PyTorch 2.13 in float64: torchvision's definitions as torch.nn modules, filled by
# `published_value` and applied to the same images; the outputs for the last image, first three
# classes. (VGG-16 was compared in the same way, with an error of 7e-15; it is too large for here.)
@pytest.mark.parametrize(
    ("make", "size", "expected"),
    [
        (lambda: models.resnet20(), 32, [-0.438855706221, 71.6185893378, -43.9815699234]),
        (
            lambda: models.resnet18((3, 64, 64), 10),
            64,
            [118.420461033, -26.6480024062, -23.64293192],
        ),
        (
            lambda: models.resnet50((3, 64, 64), 10),
            64,
            [4011.40375069, -6274.99978848, -308.21721709],
        ),
        (
            lambda: models.alexnet((3, 64, 64), 10),
            64,
            [-2.70572942541, 1.05710759317, 1.93365878764],
        ),
        (
            lambda: models.inception3((3, 75, 75), 10, auxiliary=False),
            75,
            [0.628331683269, -1.56673441558, -0.982575359036],
        ),
        (
            lambda: models.googlenet((3, 64, 64), 10),
            64,
            [15.3640294351, 20.2195169394, -12.7766861427],
        ),
    ],
    ids=["resnet20", "resnet18", "resnet50", "alexnet", "inception3", "googlenet"],
)
def test_evaluation_gives_the_published_values(
    make: Callable[[], list[nn.Layer]], size: int, expected: list[float]
) -> None:
    found = _outputs(make(), (2, 3, size, size))
    assert list(found) == ["main"]
    assert found["main"] == pytest.approx(expected, rel=1e-8)


def test_training_gives_the_published_values_of_all_heads() -> None:
    found = _outputs(models.googlenet((3, 64, 64), 10), (2, 3, 64, 64), training=True)
    assert list(found) == ["main", "aux1", "aux2"]
    assert found["main"] == pytest.approx(
        [1.54118796683, -0.0486593253398, -0.470239811319], rel=1e-8
    )
    assert found["aux1"] == pytest.approx(
        [-0.434248018328, -1.35909914697, -0.382977837075], rel=1e-8
    )
    assert found["aux2"] == pytest.approx(
        [0.689312463178, -0.065022912568, -0.37350712537], rel=1e-8
    )


def test_heads_get_their_parameters_even_if_evaluation_comes_first() -> None:
    layers = models.googlenet((3, 64, 64), 10)
    net = nn.network(layers)
    with nn.trace(allocate=False) as first:
        net(op.input("x", (1, 3, 64, 64)))
    before = net.parameters()
    assert not [call for call in first.calls if "aux" in call.layer.path]
    with nn.trace(allocate=False, training=True, random=op.random_state()) as second:
        net(op.input("x", (1, 3, 64, 64)))
    assert net.parameters() == before
    assert [call for call in second.calls if call.layer.path.endswith("aux2")]


def test_googlenet_without_heads_gives_one_output() -> None:
    layers = models.googlenet((3, 64, 64), 10, auxiliary=False)
    circumstances = {"training": True, "random": op.random_state()}
    assert _trace(layers, (2, 3, 64, 64), **circumstances).shape == (2, 10)


def test_rescaled_images_are_those_normalised_by_one_half() -> None:
    plain, rescaled = (
        models.GoogLeNet(3, auxiliary=False, rescale_input=flag) for flag in (False, True)
    )
    pixels = np.random.default_rng(0).uniform(0, 1, (1, 3, 40, 40)).astype(np.float32)
    means, deviations = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    by_imagenet = (pixels - means.reshape(3, 1, 1)) / deviations.reshape(3, 1, 1)
    expected = plain((pixels - 0.5) / 0.5).numpy()
    _begin_with_zeros(rescaled)
    rescaled(by_imagenet)
    for new, old in zip(rescaled.parameters(), plain.parameters(), strict=True):
        new.assign(old.numpy())
    np.testing.assert_allclose(rescaled(by_imagenet).numpy(), expected, rtol=1e-3, atol=1e-4)


def test_the_paths_of_the_zoo_are_torchvisions_names() -> None:
    net = nn.network(models.resnet18())
    with nn.trace(allocate=False):
        net(op.input("x", (1, 3, 224, 224)))
    names = {parameter.name for parameter in net.parameters()}
    assert {"conv1/weight", "layer2.0/downsample/0/weight", "layer4.1/bn2/bias", "fc/bias"} <= names


# --- GPT and the LSTM classifier


def _gpt() -> Any:
    return models.GPT(vocabulary=11, context=6, width=8, depth=2, heads=2)


def test_gpt_sees_no_later_word() -> None:
    model = _gpt()
    words = np.array([[1, 2, 3, 4, 5, 6]])
    other = np.array([[1, 2, 3, 9, 9, 9]])
    first, second = model(words).numpy(), model(other).numpy()
    np.testing.assert_allclose(first[:, :3], second[:, :3], atol=1e-6)
    assert np.abs(first[:, 3:] - second[:, 3:]).max() > 1e-4


def test_gpt_shares_its_table_and_has_the_size_of_the_formula() -> None:
    model = _gpt()
    model(np.zeros((1, 3), np.int64))
    block = 12 * 8 * 8 + 13 * 8
    assert sum(p.size for p in model.parameters()) == 11 * 8 + 6 * 8 + 2 * block + 2 * 8
    deep = model.blocks[0].output.weight.numpy().std() / model.blocks[0].hidden.weight.numpy().std()
    assert deep == pytest.approx(0.5, rel=0.25)


def test_generation_at_temperature_zero_takes_the_likeliest_word() -> None:
    model = _gpt()
    text = model.generate([1, 2, 3], count=8, temperature=0.0)
    assert text[:3].tolist() == [1, 2, 3]
    for end in range(3, 11):
        seen = text[max(0, end - 6) : end]
        assert text[end] == model(seen[None]).numpy()[0, -1].argmax()


def test_generation_follows_its_seed_and_the_scores() -> None:
    model = _gpt()
    first = model.generate([1], count=30, seed=3)
    np.testing.assert_array_equal(first, model.generate([1], count=30, seed=3))
    assert (first != model.generate([1], count=30, seed=4)).any()
    # The plan reads the weights of the moment.
    model.norm.weight.assign(np.zeros(8))
    model.norm.bias.assign(model.words.weight.numpy()[7] * 1e4)
    assert set(model.generate([1], count=5, seed=3)[1:].tolist()) == {7}


def _written_word_by_word(
    model: models.GPT, prompt: np.ndarray, count: int, temperature: float, seed: int
) -> np.ndarray:
    """What `generate` is to give: every word from the scores of all words before it."""
    text, generator = prompt, np.random.default_rng(seed)
    plan = cd.compile(model(op.input("words", (len(text), model.context), dtype="int64")))
    for _ in range(count):
        seen = text[:, -model.context :]
        # Later words change nothing: one length is enough to compile for.
        padded = np.pad(seen, ((0, 0), (0, model.context - seen.shape[1])))
        scores = plan.run({"words": padded})[0].numpy()[:, seen.shape[1] - 1].astype(float)
        weights = np.exp((scores - scores.max(-1, keepdims=True)) / max(temperature, 1e-9))
        words = [
            row.argmax() if temperature == 0 else generator.choice(len(row), p=row / row.sum())
            for row in weights
        ]
        text = np.concatenate([text, np.array(words)[:, None]], axis=1)
    return text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generation_with_kept_keys_and_values_writes_the_same_text(temperature: float) -> None:
    model = _gpt()
    model(np.zeros((1, 6), np.int64))
    generator = np.random.default_rng(0)
    for parameter in model.parameters():
        parameter.assign(parameter.numpy() + generator.normal(0.0, 0.3, parameter.shape))
    for prompt in ([[1]], [[1, 2, 3], [4, 5, 6], [9, 8, 7]], [[1, 2, 3, 4, 5, 6, 7]]):
        given = np.array(prompt)
        right = _written_word_by_word(model, given, 9, temperature, seed=3)
        found = model.generate(given, 9, temperature=temperature, seed=3)
        assert temperature == 0 or len(np.unique(right)) > 3
        np.testing.assert_array_equal(found, right)


def test_a_model_keeps_the_plans_of_few_kinds_of_text() -> None:
    model = _gpt()
    for count in range(1, 7):
        model.generate(np.ones((count, 2), int), 1)
    assert len(model._readers) == 4


@pytest.mark.parametrize("prompt", [[], [11], [-1], [[1], [2, 3]], [0.5], [[[1]]]])
def test_generation_needs_words_it_knows(prompt: list[Any]) -> None:
    with pytest.raises(ConfigError, match="expected words from 0 to 10"):
        _gpt().generate(prompt, count=1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("count", -1),
        ("count", 1.5),
        ("seed", -1),
        ("seed", "a"),
        ("temperature", -1.0),
        ("temperature", "warm"),
        ("temperature", float("nan")),
    ],
)
def test_generation_refuses_what_it_cannot_use(argument: str, value: Any) -> None:
    with pytest.raises(CalderaError, match=argument):
        _gpt().generate([1], **{"count": 1, argument: value})


def test_gpt_refuses_more_words_than_its_context() -> None:
    with pytest.raises(ShapeError, match="at most 6 steps"):
        _gpt()(np.zeros((1, 7), np.int64))


@pytest.mark.parametrize("depth", [1, 2])
def test_the_lstm_classifier_ignores_padding(depth: int) -> None:
    net = nn.network(
        models.lstm_classifier(9, 5, 3, width=4, units=6, depth=depth, bidirectional=True)
    )
    words = np.array([[3, 4, 0, 0, 0], [1, 2, 3, 4, 5]])
    found = net(words).numpy()
    assert found.shape == (2, 3)
    short = nn.Sequential(net.layers[1:])  # type: ignore[attr-defined]
    np.testing.assert_allclose(short(words[:1, :2]).numpy()[0], found[0], atol=1e-6)
