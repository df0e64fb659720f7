"""A tour of the core: `make demo` runs it and leaves a picture in out/."""

from __future__ import annotations

from pathlib import Path

import caldera as cd
from caldera import op, optim


def main(folder: Path = Path("out")) -> None:
    """Run the tour; the picture goes to `folder`."""
    print("Memory: 20 numbers that live on the host and on a device, copied only when stale")
    memory = cd.MemoryManager(20, dtype="float32", kind=cd.MANAGED, device="loopback")
    memory.set(3, 8.0)
    memory.prefetch("device")
    print(f"  element 3 is {memory.get(3)} after {memory.copies} copy to the device\n")

    print("Tensors: concrete data, indexed as in NumPy")
    t = cd.Tensor((32, 28, 28), fill=cd.uniform(-1, 1))
    t[1, 3, 0] = 8.0
    flat = t.reshape(32, 784).squeeze()
    print(f"  {flat.shape}, element [1, 84] is {flat[1, 84]}\n")

    print("Expressions: lazy, differentiable, compiled as a whole")
    x = op.var("X", (500, 300), fill=cd.uniform())
    w = op.var("W", (600, 500), fill=cd.glorot_uniform())
    b = op.var("b", (600, 300), fill=cd.zero())
    y = op.relu(w @ x + b)
    dw, db = op.grad(op.sum(y * y), [w, b])
    plan = cd.compile([y, dw, db])
    plan.explain()
    folder.mkdir(exist_ok=True)
    print(f"\n  The graph before and after optimisation: {plan.draw(folder / 'graph.svg')}\n")

    print("Optimizers: the minimum of x**2 - 2")
    z = op.var("x", (), fill=cd.constant(3.0))
    found = optim.GradientDescent(0.05).minimize(z**2 - 2.0, [z])
    print(f"  {found.value:.6f} at x = {float(z):.6f}, after {found.steps} steps")


if __name__ == "__main__":
    main()
