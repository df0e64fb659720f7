"""Memory of exported libraries: no invalid access, no leak, and none that grows with calls."""

from __future__ import annotations

from pathlib import Path

import pytest

import caldera as cd
from caldera import nn
from tests.unit.export.loaded import needs, run
from tests.unit.export.test_targets import on_x86

pytestmark = needs("cc", "ar")

PROGRAM = """\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "wing.h"

#define CHECK(code) if ((code) != wing_OK) return __LINE__

int main(int count, char **arguments) {
    wing_model *model;
    CHECK(wing_create(&model));
    for (int64_t rows = 1; rows <= 37; rows += 12) {
        size_t n = (size_t)rows;
        float *x = malloc(n * 2 * 49 * sizeof *x), *dx = malloc(n * 2 * 49 * sizeof *dx);
        float *y = malloc(n * 3 * sizeof *y), *dy = malloc(n * 3 * sizeof *dy), loss = 0;
        for (size_t i = 0; i < n * 2 * 49; i++) x[i] = (float)(i % 17) / 17;
        CHECK(wing_predict(model, rows, x, y));
        memcpy(dy, y, n * 3 * sizeof *y);
        CHECK(wing_vjp(model, rows, x, dy, dx));
        if (rows == 13) CHECK(wing_step(model, rows, x, y, &loss));
        if (wing_step(model, 5, x, y, &loss) != wing_ROWS) return __LINE__;
        if (wing_predict(model, rows, x, NULL) != wing_NULL) return __LINE__;
        free(x), free(dx), free(y), free(dy);
    }
    CHECK(wing_store(model, arguments[count - 1]));
    CHECK(wing_load(model, arguments[count - 1]));
    if (wing_load(model, "nowhere") != wing_FILE) return __LINE__;
    wing_destroy(model);
    wing_destroy(NULL);
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    layers = [nn.Input((2, 7, 7)), nn.Conv2D(4, 3), nn.Flatten(), nn.Dense(3)]
    model = cd.NeuralNetwork(layers, loss="mean_squared", optimizer="sgd")
    # valgrind has no AVX-512.
    options = {"target": "x86-64-v3", "vjp": True, "step": True}
    cd.export.c(model, folder, name="wing", batch=(13,), threads=2, **options)
    (folder / "program.c").write_text(PROGRAM)
    return folder


@on_x86
@needs("valgrind")
def test_valgrind_finds_no_error_and_no_leak(library: Path, tmp_path: Path) -> None:
    given = ["-g", f"-I{library}", library / "program.c", library / "libwing.a", "-lm", "-lpthread"]
    run("cc", *given, "-o", tmp_path / "program")
    options = ["-q", "--error-exitcode=99", "--leak-check=full", "--show-leak-kinds=all"]
    run("valgrind", *options, tmp_path / "program", tmp_path / "weights")


@on_x86
def test_the_address_sanitizer_finds_no_error(library: Path, tmp_path: Path) -> None:
    source = library / "source"
    files = [source / each for each in ("wing.c", "wing_x86_64_v3.c", "wing_data.S")]
    options = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    given = [*options, "-Xassembler", f"-I{source}", f"-I{library}", library / "program.c"]
    kernels = source / "wing_x86_64_v3_kernels.o"
    run("cc", *given, *files, kernels, "-lm", "-lpthread", "-o", tmp_path / "program")
    run(tmp_path / "program", tmp_path / "weights")


CALLS = """\
static long resident(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

int calls(void) {
    static float x[3 * 2 * 49], y[9];
    wing_model *model, *other;
    long before = 0;
    CHECK(wing_create(&model));
    for (int i = 0; i < 20000; i++) {
        if (i == 1000) before = resident();
        CHECK(wing_predict(model, 3, x, y));
        if (i % 100) continue;
        CHECK(wing_create(&other));
        CHECK(wing_predict(other, 3, x, y));
        wing_destroy(other);
    }
    wing_destroy(model);
    printf("%ld\\n", resident() - before);
    return 0;
}

int main(void) { return calls(); }
"""


@on_x86
def test_memory_does_not_grow_with_calls(library: Path, tmp_path: Path) -> None:
    begin = PROGRAM.partition("int main")[0]
    (tmp_path / "calls.c").write_text(begin + CALLS)
    given = [f"-I{library}", tmp_path / "calls.c", library / "libwing.a", "-lm", "-lpthread"]
    run("cc", "-O1", *given, "-o", tmp_path / "calls")
    assert int(run(tmp_path / "calls")) <= 256, "kilobytes after the first 1,000 calls"
