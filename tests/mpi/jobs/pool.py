"""What mpi4py.futures runs on the first of three ranks: a search and matrices on the others."""

import os
from pathlib import Path

import numpy as np
from mpi4py.futures import MPIPoolExecutor

import caldera as cd
from caldera import dmath as dm
from caldera import nn, search
from caldera.comm import world


def squared(x: int) -> float:
    with Path("ran").open("a") as file:
        file.write(f"{x} {os.getpid()} {world().size}\n")
    return float((x - 5) ** 2)


def fails(x: int) -> float:
    raise ValueError(f"no {x}")


if __name__ == "__main__":
    grid = {"x": search.integer(0, 11)}
    study = search.run(squared, grid, method="grid", workers="mpi", verbose=0)
    print("search", len(study.trials), study.best.parameters)
    with MPIPoolExecutor() as executor:
        a = np.random.default_rng(0).normal(size=(40, 30))
        with dm.connect(2, on=executor) as session:
            x = dm.array(a)
            error = abs((x.T @ x).numpy() - a.T @ a).max()
            print("matrices", session.ranks, bool(error < 1e-4))
        study = search.run(fails, grid, method="grid", workers=executor, verbose=0)
        print("failed", study.counts()["failed"])
    try:
        dm.connect(2, on=executor)
    except cd.ConfigError as error:
        print("refused", "shut down" in str(error))
    model = cd.NeuralNetwork([nn.Input((3,)), nn.Dense(2)], batch_size=4)
    model.fit((np.ones((8, 3), "float32"), np.zeros(8, "int64")), epochs=1, verbose=0)
    print("alone", world().size)
