"""Libraries with code for other processors, and the choice among them when a program runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding as llvm

import caldera as cd
from caldera import nn
from caldera.cli.program import main
from caldera.errors import ConfigError
from caldera.export import library
from caldera.kernels.native.codegen.target import host_target
from tests.unit.export.loaded import Loaded, needs

RNG = np.random.default_rng(0)
IS_X86 = host_target().triple.startswith("x86_64")
NEEDED = {"x86-64-v2": "sse4.2", "x86-64-v3": "avx2", "x86-64-v4": "avx512f"}
HERE = [each for each, name in NEEDED.items() if llvm.get_host_cpu_features().get(name)]
ELF_AARCH64 = 0xB7

on_x86 = pytest.mark.skipif(not (IS_X86 and HERE), reason="needs an x86_64 processor with SSE 4.2")


def _model() -> cd.NeuralNetwork:
    convolution = [nn.Conv2D(5, 3, padding=1), nn.BatchNorm(), nn.ReLU(), nn.MaxPool2D(2)]
    layers = [nn.Input((2, 8, 8)), *convolution, nn.Flatten(), nn.Dense(3)]
    return cd.NeuralNetwork(layers, loss="mean_squared")


@on_x86
@needs("cc", "ar")
@pytest.mark.parametrize("target", HERE[:1])
def test_code_for_older_processors_is_right(tmp_path: Path, target: str) -> None:
    model = _model()
    folder = cd.export.c(model, tmp_path, name="wing", batch=(), target=[target], vjp=True)
    x = RNG.normal(size=(11, 2, 8, 8)).astype("float32")
    with Loaded(folder, "wing") as loaded:
        assert loaded.text("target") == target
        found = loaded.predict(x, outputs=(3,))
        np.testing.assert_allclose(found, model.predict(x), rtol=0, atol=2e-6)
        dx, ones = np.empty_like(x), np.ones((11, 3), "float32")
        assert loaded.call("vjp", 11, x, ones, dx) == 0
    step = 1e-2 * np.sign(dx)
    change = (model.predict(x + step) - model.predict(x - step)).sum(axis=1) / 2e-2
    np.testing.assert_allclose(abs(dx).sum(axis=(1, 2, 3)), change, rtol=0.2)


@on_x86
@needs("cc", "ar")
def test_the_best_code_that_can_run_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [nn.Input((4,)), nn.Dense(3)]
    model = cd.NeuralNetwork(layers, loss="mean_squared").save(tmp_path / "wing.caldera")
    out = tmp_path / "out"
    given = ["--target", ",".join(NEEDED), "--batch", "1"]
    assert main(["export", str(model), "--c", str(out), *given]) == 0
    with Loaded(out, "wing") as loaded:
        assert loaded.text("target") == HERE[-1]
    answers = iter(["    return 0;\n", "    return 1;\n"])
    monkeypatch.setattr(library, "_condition", lambda: next(answers))
    targets = ["x86-64-v2", "x86-64-v4"]
    folder = cd.export.c(cd.load(model), tmp_path / "dispatch", target=targets, batch=())
    with Loaded(folder, "dispatch") as loaded:
        assert loaded.text("target") == "x86-64-v2"
        assert loaded.predict(np.ones((3, 4), "float32"), outputs=(3,)).shape == (3, 3)


def test_objects_for_arm_are_written_without_a_cross_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    model, x = _model(), RNG.normal(size=(3, 2, 8, 8)).astype("float32")
    before = model.predict(x)
    folder = cd.export.c(model, tmp_path, name="wing", target="aarch64", batch=())
    code = (folder / "source" / "wing_aarch64_kernels.o").read_bytes()
    assert int.from_bytes(code[18:20], "little") == ELF_AARCH64
    source = (folder / "source" / "wing_aarch64.c").read_text()
    kernels = re.search(r"kernel_t kernels\[\] = \{([^}]*)\}", source)
    assert kernels is not None
    assert all(each.strip().encode() in code for each in kernels[1].split(","))
    assert (not list(folder.glob("lib*"))) == IS_X86
    # Plans of this machine are unchanged afterwards.
    np.testing.assert_array_equal(model.predict(x), before)
    np.testing.assert_allclose(_model().predict(x), before, rtol=0, atol=1e-6)


def test_unknown_and_mixed_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"targets among native, .*, got avx9"):
        cd.export.c(_model(), tmp_path, target=["avx9"])
    with pytest.raises(ConfigError, match="targets of one architecture, got x86-64-v3, aarch64"):
        cd.export.c(_model(), tmp_path, target=["x86-64-v3", "aarch64"])
