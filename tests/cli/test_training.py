"""`train` and what comes after it: `eval`, `predict`, `summary`, `graph`."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import caldera as cd
from caldera import data
from caldera.cli.recipe import read_recipe
from caldera.train.neural_network import load_model
from caldera.train.tracking.history import History
from tests.cli.conftest import Caldera

SMALL = ("--hidden", "16", "--dropout", "0", "--epochs", "1", "--quiet")


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _accuracy(text: str) -> float:
    found = re.search(r"accuracy ([\d.]+)%", text)
    assert found is not None
    return float(found[1])


# --- train


def test_train_writes_all_that_came_of_it(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert names == {
        "digits.caldera",
        "curves.svg",
        "graph.svg",
        "history.json",
        "recipe.toml",
        "run.json",
    }
    for picture in ("curves.svg", "graph.svg"):
        assert "<svg" in (trained / picture).read_text()
    history = History.from_dict(json.loads((trained / "history.json").read_text()))
    assert history.epochs == [0, 1]
    recipe = read_recipe(trained / "recipe.toml")
    assert (recipe["data"], recipe["hidden"], recipe["loss"]) == ("digits", [32], "cross_entropy")


def test_train_says_what_it_does(caldera: Caldera, tmp_path: Path) -> None:
    done = caldera("train", *SMALL[:-1], "--out", tmp_path)
    assert done.status == 0
    assert "digits: 1438 samples to train, 359 to test" in done.out
    assert "mlp: 1,210 parameters" in done.out
    assert "epoch 1/1" in done.out
    assert 20 < _accuracy(done.out) <= 100


def test_the_recipe_that_was_written_repeats_the_run(
    caldera: Caldera, trained: Path, tmp_path: Path
) -> None:
    done = caldera("train", trained / "recipe.toml", "--quiet", "--out", tmp_path)
    assert done.status == 0
    first, second = load_model(trained / "digits.caldera"), load_model(tmp_path / "digits.caldera")
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert (tmp_path / "recipe.toml").read_text() == (trained / "recipe.toml").read_text()


def test_flags_count_for_more_than_the_recipe(caldera: Caldera, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('hidden = 64\nepochs = 50\nactivation = "tanh"\n')
    assert caldera("train", recipe, *SMALL, "--seed", "3", "--out", tmp_path / "out").status == 0
    written = read_recipe(tmp_path / "out" / "recipe.toml")
    assert (written["hidden"], written["epochs"], written["activation"]) == ([16], 1, "tanh")
    assert load_model(tmp_path / "out" / "digits.caldera").seed == 3


def test_a_run_goes_on_from_its_checkpoints(caldera: Caldera, tmp_path: Path) -> None:
    words = ("train", *SMALL, "--out", tmp_path / "out", "--checkpoint", tmp_path / "run")
    assert caldera(*words).status == 0
    again = caldera(*words)
    assert again.status == 2
    assert "--resume" in again.err
    assert caldera(*words, "--epochs", "2", "--resume").status == 0
    history = json.loads((tmp_path / "out" / "history.json").read_text())
    assert history["epochs"] == [0, 1]


def test_stopping_early(caldera: Caldera, tmp_path: Path) -> None:
    words = ("train", "--out", tmp_path, *SMALL, "--epochs", "20", "--target-accuracy", "0.2")
    done = caldera(*words)
    assert done.status == 0
    assert "stopped: val_accuracy has reached 0.2" in done.out


def test_training_options_reach_the_model(caldera: Caldera, tmp_path: Path) -> None:
    done = caldera(
        "train",
        *SMALL,
        "--out",
        tmp_path,
        "--optimizer",
        "momentum",
        "--learning-rate",
        "0.05",
        "--schedule",
        "one_cycle",
        "--batch-growth",
        "2",
        "--metrics",
        "accuracy,f1",
        "--label-smoothing",
        "0.1",
        "--crop",
        "1",
        "--mirror",
        "--cutout",
        "2",
        "--clip-norm",
        "1",
        "--patience",
        "3",
        "--keep-best",
        "--test-part",
        "0.5",
    )
    assert done.status == 0, done.err
    model = load_model(tmp_path / "digits.caldera")
    assert model.optimizer.config()["arguments"]["momentum"] == 0.9
    assert [metric.name for metric in model.metrics] == ["accuracy", "f1"]
    assert "719 samples to train, 180 to choose by, 898 to test" in done.out


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_training_after_saving(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    words = ["train", "--epochs", "100000", "--hidden", "8", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "caldera", *words, "--checkpoint", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell's background job ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if line.startswith("epoch 2/"):
                process.send_signal(number)
                break
        rest = lines.read()
    assert process.wait(60) == status, rest
    assert load_model(tmp_path / "out" / "digits.caldera").parameters()
    assert list((tmp_path / "run").glob("step-*"))


# --- tables


@pytest.fixture(scope="module")
def flowers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of flowers: roses are wider than long. One column is far larger than the others."""
    folder = tmp_path_factory.mktemp("flowers")
    x = np.random.default_rng(0).normal(size=(300, 3))
    names = np.where(x[:, 0] > x[:, 1], "rose", "iris")
    lines = [f"{a:.5f},{b:.5f},{1e4 * c:.5f},{n}" for (a, b, c), n in zip(x, names, strict=True)]
    (folder / "flowers.csv").write_text("\n".join(["width,length,weight,name", *lines]) + "\n")
    return folder


def test_tables_from_training_to_prediction(caldera: Caldera, flowers: Path) -> None:
    table = flowers / "flowers.csv"
    done = caldera(
        "train",
        "--data",
        table,
        "--target-column",
        "name",
        "--epochs",
        20,
        "--quiet",
        "--out",
        flowers,
    )
    assert done.status == 0, done.err
    assert _accuracy(done.out) > 85
    predicted = caldera(
        "predict", flowers / "flowers.caldera", table, "--target-column", "name"
    ).out
    actual = [line.rpartition(",")[2] for line in table.read_text().splitlines()[1:]]
    found = [row["name"] for row in _rows(predicted)]
    assert np.mean(np.array(found) == actual) > 0.85
    assert all(0.5 <= float(row["probability"]) <= 1 for row in _rows(predicted))


def test_classes_are_told_by_name(caldera: Caldera, flowers: Path, tmp_path: Path) -> None:
    lines = (flowers / "flowers.csv").read_text().splitlines()
    roses = tmp_path / "roses.csv"
    roses.write_text("\n".join([lines[0], *(line for line in lines if line.endswith("rose"))]))
    words = ("eval", flowers / "flowers.caldera", "--target-column", "name", "--part", "all")
    assert _accuracy(caldera(*words, "--data", roses).out) > 85
    tulips = tmp_path / "tulips.csv"
    tulips.write_text(roses.read_text().replace("rose", "tulip"))
    done = caldera(*words, "--data", tulips)
    assert done.status == 1
    assert "expected one of the classes iris, rose in column 3 ('name'), got 'tulip'" in done.err


def test_values_are_predicted_as_values(caldera: Caldera, tmp_path: Path) -> None:
    table = tmp_path / "sums.csv"
    x = np.random.default_rng(0).normal(size=(100, 2))
    np.savetxt(table, np.column_stack([x, x.sum(axis=1)]), delimiter=",")
    done = caldera("train", "--data", table, *SMALL, "--epochs", 30, "--out", tmp_path)
    assert "mae" in done.out
    assert 'loss = "mean_squared"' in (tmp_path / "recipe.toml").read_text()
    np.savetxt(tmp_path / "new.csv", x[:5], delimiter=",")
    rows = _rows(caldera("predict", tmp_path / "sums.caldera", tmp_path / "new.csv").out)
    predicted = np.array([float(row["value0"]) for row in rows])
    assert np.corrcoef(predicted, x[:5].sum(axis=1))[0, 1] > 0.9


# --- eval, predict


def test_eval_agrees_with_training(caldera: Caldera, trained: Path) -> None:
    history = json.loads((trained / "history.json").read_text())
    done = caldera("eval", trained / "digits.caldera", "--json")
    assert done.status == 0
    assert json.loads(done.out)["accuracy"] == history["columns"]["val_accuracy"][-1]
    assert "digits (train, 1438 samples)  accuracy" in (
        caldera("eval", trained / "digits.caldera", "--part", "train", "--batch-size", 7).out
    )


def test_eval_refuses_data_of_another_shape(caldera: Caldera, trained: Path, flowers: Path) -> None:
    done = caldera("eval", trained / "digits.caldera", "--data", flowers / "flowers.csv")
    assert done.status == 1
    assert "expected samples of shape (1, 8, 8), got (3,)" in done.err


def test_predictions_are_the_same_from_every_kind_of_file(
    caldera: Caldera, trained: Path, tmp_path: Path
) -> None:
    # Pixels that a PNG holds exactly.
    x = np.round(data.digits().test.x[:6] * 255) / np.float32(255)
    np.save(tmp_path / "x.npy", x)
    np.savetxt(tmp_path / "x.csv", x.reshape(6, -1), delimiter=",")
    (tmp_path / "images").mkdir()
    for number, image in enumerate(x):
        pixels = np.round(image[0] * 255).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    model = load_model(trained / "digits.caldera")
    expected = [str(number) for number in model.predict(x).argmax(axis=1)]
    for name in ("x.npy", "x.csv", "images"):
        out = tmp_path / "new" / f"{name}.csv"
        done = caldera("predict", trained / "digits.caldera", tmp_path / name, "--out", out)
        assert (done.status, done.err) == (0, "")
        assert [row["class"] for row in _rows(out.read_text())] == expected
    one = caldera("predict", trained / "digits.caldera", tmp_path / "images" / "2.png").out
    assert [(row["sample"], row["class"]) for row in _rows(one)] == [("2.png", expected[2])]
    plain = tmp_path / "plain.npy"
    caldera("predict", trained / "digits.caldera", tmp_path / "x.npy", "--out", plain)
    np.testing.assert_allclose(np.load(plain), model.predict(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", "1,2,3\n", "rows of 64 numbers, got 3 columns"),
        ("x.csv", ",".join(["1"] * 65), "name their column with --target-column"),
        ("x.pdf", "1", "a table (.csv, .parquet, ...), an .npy file"),
        ("none.csv", None, "none at"),
        ("empty/", None, "expected a folder with images, got none in it"),
    ],
)
def test_predict_says_what_is_wrong_with_a_file(
    caldera: Caldera, trained: Path, tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    elif name.endswith("/"):
        (tmp_path / name).mkdir()
    done = caldera("predict", trained / "digits.caldera", tmp_path / name)
    assert done.status == 1
    assert said in done.err
    assert done.out == ""


# --- summary, graph


def test_summary_of_a_name_a_recipe_and_a_file(caldera: Caldera, trained: Path) -> None:
    assert "parameters  61,706 (61,706 trained)" in caldera("summary", "lenet5").out
    shaped = caldera("summary", "mlp", "--input-shape", "3", "--classes", "2", "--hidden", "4").out
    assert "parameters  26 (26 trained)" in shaped
    file, recipe = (caldera("summary", trained / n).out for n in ("digits.caldera", "recipe.toml"))
    assert "parameters  2,410 (2,410 trained)" in file
    assert file == recipe


def test_a_model_file_takes_no_options(caldera: Caldera, trained: Path) -> None:
    done = caldera("summary", trained / "digits.caldera", "--hidden", "3")
    assert done.status == 2
    assert "got hidden" in done.err


def test_graph_draws_the_training_step(caldera: Caldera, trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "graph.svg"
    done = caldera("graph", trained / "digits.caldera", "--out", path)
    assert (done.status, done.out) == (0, f"wrote   {path}\n")
    text = path.read_text()
    assert "as written" in text
    assert "as it runs" in text
    words = ("graph", "mlp", "--data", "digits", "--hidden", "4", "--optimizer", "sgd")
    plain, momentum = tmp_path / "plain.svg", tmp_path / "momentum.svg"
    assert caldera(*words, "--out", plain).status == 0
    assert caldera(*words, "--momentum", "0.9", "--out", momentum).status == 0
    assert "velocity" not in plain.read_text()
    assert "velocity" in momentum.read_text()


def test_the_seed_of_the_process_does_not_matter(caldera: Caldera, tmp_path: Path) -> None:
    outputs = []
    for seed in (1, 2):
        cd.seed(seed)
        caldera("train", *SMALL, "--out", tmp_path)
        outputs.append(load_model(tmp_path / "digits.caldera").parameters()[0].numpy())
    np.testing.assert_array_equal(*outputs)


def test_no_epochs_are_told_and_leave_nothing_of_an_earlier_run(
    caldera: Caldera, tmp_path: Path
) -> None:
    table = tmp_path / "first.csv"
    table.write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(40)))
    words = ("train", *SMALL, "--out", tmp_path / "run", "--target-column", "y", "--data")
    assert caldera(*words, table).status == 0
    done = caldera(*words, table.rename(tmp_path / "second.csv"), "--epochs", 0)
    assert done.status == 0, done.err
    assert "(not trained: 0 epochs)" in done.out
    assert sorted(each.name for each in (tmp_path / "run").iterdir()) == [
        "graph.svg",
        "history.json",
        "recipe.toml",
        "run.json",
        "second.caldera",
    ]
