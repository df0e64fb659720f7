"""Character-level language models on the project's own documentation, beside PyTorch.

A small GPT and an LSTM predict the next character of the README, CONTRIBUTING and every docstring.
Both frameworks start from the same weights and see the same batches; the losses are on text that
was held out. Time is of all steps, the first one included.

    python benchmarks/training/text.py [--steps 300]
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import platform
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import data, nn, optim
from caldera.bench.timing import Stopwatch

ROOT = Path(__file__).parents[2]
CONTEXT, BATCH = 64, 32
HAS_TORCH = importlib.util.find_spec("torch") is not None


def documentation() -> str:
    """The README, CONTRIBUTING and all docstrings, in a fixed order."""
    parts = [(ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")]
    for path in sorted((ROOT / "caldera").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                parts.append(ast.get_docstring(node) or "")
    return "\n".join(parts)


def windows(codes: np.ndarray) -> data.ArrayData:
    """Stretches of CONTEXT characters, each with the characters that follow."""
    starts = np.arange(0, len(codes) - CONTEXT - 1, CONTEXT // 2)
    rows = starts[:, None] + np.arange(CONTEXT)
    return data.ArrayData(codes[rows], codes[rows + 1])


def networks(vocabulary: int) -> dict[str, list[nn.Layer]]:
    """The two models."""
    return {
        "GPT, 3 layers, width 96, 4 heads": nn.models.gpt(
            vocabulary, context=CONTEXT, width=96, depth=3, heads=4
        ),
        "LSTM, 192 units": [
            nn.Input((CONTEXT,), dtype="int64"),
            nn.Embedding(vocabulary, 64),
            nn.LSTM(192, return_sequences=True),
            nn.Dense(vocabulary),
        ],
    }


def train_caldera(
    model: cd.NeuralNetwork, train: data.ArrayData, test: data.ArrayData, steps: int
) -> tuple[float, float]:
    """The loss on held-out text, and the seconds."""

    class Stop(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.step == steps:
                run.stop("enough")

    start = Stopwatch()
    model.fit(train, epochs=1000, callbacks=[Stop()], verbose=0)
    seconds = start.wall
    return model.evaluate(test)["loss"], seconds


def train_torch(
    model: cd.NeuralNetwork,
    given: dict[str, np.ndarray],
    train: data.ArrayData,
    test: data.ArrayData,
    steps: int,
) -> tuple[float, float]:
    """The same model from the same weights on the same batches."""
    import torch
    from torch.nn import functional as f

    p = {name: torch.from_numpy(w.copy()).requires_grad_() for name, w in given.items()}
    is_gpt = any("GPT" in name for name in p)
    if not is_gpt:
        lstm = torch.nn.LSTM(64, 192, batch_first=True)
        for ours, theirs in (("input_weight", "weight_ih_l0"), ("state_weight", "weight_hh_l0")):
            getattr(lstm, theirs).data = p.pop(f"2-LSTM/{ours}").data.T.contiguous()
        for ours, theirs in (("input_bias", "bias_ih_l0"), ("state_bias", "bias_hh_l0")):
            getattr(lstm, theirs).data = p.pop(f"2-LSTM/{ours}").data

    def gpt(words: Any) -> Any:
        x = p["1-GPT/words/weight"][words] + p["1-GPT/positions/weight"]
        width = x.shape[-1]
        for i in range(3):
            q = {k.split("/", 2)[2]: v for k, v in p.items() if f"/blocks{i}/" in k}
            h = f.layer_norm(x, (width,), q["norm1/weight"], q["norm1/bias"])
            h = h @ q["attention/input_weight"] + q["attention/input_bias"]
            heads = [t.unflatten(2, (4, -1)).transpose(1, 2) for t in h.split(width, dim=2)]
            mixed = f.scaled_dot_product_attention(*heads, is_causal=True)
            mixed = mixed.transpose(1, 2).flatten(2)
            x = x + mixed @ q["attention/output_weight"] + q["attention/output_bias"]
            h = f.layer_norm(x, (width,), q["norm2/weight"], q["norm2/bias"])
            h = f.gelu(h @ q["hidden/weight"] + q["hidden/bias"])
            x = x + h @ q["output/weight"] + q["output/bias"]
        x = f.layer_norm(x, (width,), p["1-GPT/norm/weight"], p["1-GPT/norm/bias"])
        return x @ p["1-GPT/words/weight"].T

    def recurrent(words: Any) -> Any:
        outputs, _ = lstm(p["1-Embedding/weight"][words])
        return outputs @ p["3-Dense/weight"] + p["3-Dense/bias"]

    forward = gpt if is_gpt else recurrent
    parameters = [*p.values(), *([] if is_gpt else lstm.parameters())]
    optimizer = torch.optim.Adam(parameters, 1e-3, fused=True)

    def loss_of(x: np.ndarray, y: np.ndarray) -> Any:
        logits = forward(torch.from_numpy(x))
        return f.cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten())

    loader, done = data.Loader(train, BATCH, seed=model.seed), 0
    start = Stopwatch()
    while done < steps:
        for batch in loader:
            loss = loss_of(batch.x, np.asarray(batch.y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    seconds = start.wall
    with torch.no_grad():
        batches = data.Loader(test, BATCH, shuffle=False)
        losses = [loss_of(b.x, np.asarray(b.y)).item() * len(b) for b in batches]
    return sum(losses) / len(test), seconds


def main() -> None:
    """Train both models in both frameworks and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    text = documentation()
    letters = sorted(set(text))
    codes = np.array([letters.index(c) for c in text], dtype=np.int64)
    cut = int(0.9 * len(codes))
    train, test = windows(codes[:cut]), windows(codes[cut:])
    print(f"{platform.machine()}, {cd.settings.threads} threads, NumPy {np.__version__}", end="")
    if HAS_TORCH:
        import torch

        torch.set_num_threads(cd.settings.threads)
        print(f", PyTorch {torch.__version__}", end="")
    print(f"; {len(text):,} characters, {len(letters)} different, {options.steps} steps of {BATCH}")
    print(f"loss of a guess by frequency: {_by_frequency(codes[:cut], codes[cut:]):.4f}\n")
    for name, layers in networks(len(letters)).items():
        model = cd.NeuralNetwork(layers, optimizer=optim.Adam(1e-3), batch_size=BATCH, metrics=[])
        weights = {p.name: p.numpy() for p in model.parameters()}
        ours, seconds = train_caldera(model, train, test, options.steps)
        print(f"{name}\n  Caldera  held-out loss {ours:.4f}  {seconds:6.1f} s", flush=True)
        if HAS_TORCH:
            theirs, seconds = train_torch(model, weights, train, test, options.steps)
            print(f"  PyTorch  held-out loss {theirs:.4f}  {seconds:6.1f} s", flush=True)
        if isinstance(layers[-1], nn.models.GPT):
            prompt = [letters.index(c) for c in "A tensor "]
            written = layers[-1].generate(prompt, 60, temperature=0.7)
            print("  it writes: " + repr("".join(letters[i] for i in written)))


def _by_frequency(train: np.ndarray, test: np.ndarray) -> float:
    counts = np.bincount(train, minlength=int(max(train.max(), test.max())) + 1) + 1.0
    return float(-np.log(counts / counts.sum())[test].mean())


if __name__ == "__main__":
    main()
