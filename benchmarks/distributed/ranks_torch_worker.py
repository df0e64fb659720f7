"""PyTorch's ranks in ranks_torch.py, which starts them by torchrun: gloo, one thread a rank.

It needs PyTorch and NumPy (of which PyTorch's pipelines and PowerSGD make use), and no Caldera.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from benchmarks.distributed import ranks_cases as shared
from benchmarks.training.torch_residual import Residual


class Embedded(nn.Module):
    """Words and their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(shared.WORDS, shared.WIDTH)
        self.positions = nn.Embedding(shared.CONTEXT, shared.WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x) + self.positions.weight


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        width = shared.WIDTH
        self.norm1 = nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.hidden, self.last = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, steps, width = x.shape
        heads = (count, steps, shared.HEADS, width // shared.HEADS)
        q, k, v = (
            each.view(heads).transpose(1, 2)
            for each in self.inputs(self.norm1(x)).split(width, dim=2)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.outputs(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.last(nn.functional.gelu(self.hidden(self.norm2(x))))


def units_of(network: str) -> list[nn.Module]:
    """Return the network in units, as `ranks_cases.costs` counts them."""
    if network == "mlp":
        sizes = (784, *shared.HIDDEN)
        hidden = [nn.Sequential(nn.Linear(a, b), nn.Sigmoid()) for a, b in pairwise(sizes)]
        return [*hidden, nn.Linear(528, 10)]
    if network == "resnet20":
        conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        found: list[nn.Module] = [nn.Sequential(conv, nn.BatchNorm2d(16), nn.ReLU())]
        before = 16
        for filters in (16, 32, 64):
            for _ in range(3):
                found.append(Residual(before, filters, 1 if before == filters else 2))
                before = filters
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        return [*found, head]
    head = nn.Sequential(nn.LayerNorm(shared.WIDTH), nn.Linear(shared.WIDTH, shared.WORDS))
    return [Embedded(), *[Block() for _ in range(shared.DEPTH)], head]


def read(path: Path) -> Tensor:
    """Return the numbers of a file."""
    numbers = shared.read_array(path)
    dtype = torch.float32 if numbers.typecode == "f" else torch.int64
    return torch.frombuffer(bytearray(numbers.tobytes()), dtype=dtype)


def load(units: list[nn.Module], weights: Tensor) -> None:
    """Take Caldera's weights, whose dense layers have inputs first."""
    turned = {
        id(layer.weight)
        for unit in units
        for layer in unit.modules()
        if isinstance(layer, nn.Linear)
    }
    start = 0
    with torch.no_grad():
        for unit in units:
            for each in unit.parameters():
                part = weights[start : start + each.numel()]
                start += each.numel()
                is_turned = id(each) in turned
                each.copy_(part.view(each.shape[::-1]).t() if is_turned else part.view_as(each))
    assert start == len(weights), (start, len(weights))


def loss_of(output: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross entropy."""
    return cross_entropy(output.flatten(0, -2), y.flatten())


def in_bf16(group, bucket):
    """Sum in bfloat16 by PyTorch's hook, which is refused by its name where there is no NCCL."""
    return default_hooks.bf16_compress_hook(group, bucket)


class Trainer:
    """Steps of one case on this rank."""

    def __init__(self, case: shared.RanksCase, folder: Path) -> None:
        self.case = case
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        count = shared.BATCH[case.network]
        x = read(folder / f"{case.network}.x").view(count, *shared.SHAPE[case.network])
        y = read(folder / f"{case.network}.y").view(count, -1).squeeze(1)
        units = units_of(case.network)
        load(units, read(folder / f"{case.network}.weights"))
        self.total, self.counted, self.schedule = torch.zeros(()), True, None
        if case.strategy == "pipeline":
            self.x, self.y = self._pipeline(units, x, y, rank, ranks)
        else:
            share = count // ranks
            self.x, self.y = (each[rank * share : (rank + 1) * share] for each in (x, y))
            self.model = self._model(units, ranks)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=shared.RATE, momentum=shared.MOMENTUM
        )

    def _model(self, units: list[nn.Module], ranks: int) -> nn.Module:
        model = nn.Sequential(*units)
        if self.case.strategy == "sharded":
            mesh = init_device_mesh("cpu", (ranks,))
            for unit in units:
                fully_shard(unit, mesh=mesh)
            return fully_shard(model, mesh=mesh)
        made = DistributedDataParallel(model, bucket_cap_mb=shared.BUCKET_BYTES / 2**20)
        if self.case.strategy == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None,
                matrix_approximation_rank=shared.POWER_RANK,
                start_powerSGD_iter=2,
            )
            made.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif self.case.strategy == "bf16":
            made.register_comm_hook(None, in_bf16)
        return made

    def _pipeline(
        self, units: list[nn.Module], x: Tensor, y: Tensor, rank: int, ranks: int
    ) -> tuple[Tensor, Tensor]:
        stages, pipelines, parts = shared.pipeline_shape(self.case.network, ranks)
        pipeline, stage = divmod(rank, stages)
        cuts = shared.balanced(shared.costs(self.case.network), stages)
        self.model: nn.Module = nn.Sequential(*units[cuts[stage] : cuts[stage + 1]])
        # Every rank makes every group, as PyTorch demands.
        along = [
            distributed.new_group(range(p * stages, (p + 1) * stages)) for p in range(pipelines)
        ]
        across = [distributed.new_group(range(s, ranks, stages)) for s in range(stages)]
        if pipelines > 1:
            self.model = DistributedDataParallel(self.model, process_group=across[stage])
        group = along[pipeline]
        made = PipelineStage(self.model, stage, stages, torch.device("cpu"), group=group)
        self.schedule = Schedule1F1B(made, parts, loss_fn=loss_of)
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        self.counted = self.is_last
        share = len(x) // pipelines
        return x[pipeline * share :][:share], y[pipeline * share :][:share]

    def step(self) -> None:
        """Make one step."""
        if self.schedule is None:
            loss = loss_of(self.model(self.x), self.y)
            loss.backward()
        else:
            losses: list[Tensor] = []
            given = {"target": self.y, "losses": losses} if self.is_last else {}
            self.schedule.step(*((self.x,) if self.is_first else ()), **given)
            loss = torch.stack(losses).mean() if losses else torch.zeros(())
        self.total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def mean_loss(self) -> float:
        """Return the mean loss of all steps and ranks."""
        sums = torch.stack([self.total, torch.tensor(float(self.counted))])
        distributed.all_reduce(sums)
        return float(sums[0] / sums[1]) / self.case.total_steps


def main(folder: Path, first: int, cases: list[shared.RanksCase]) -> None:
    """Train each case in the turns that the parent gives."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shared.take_cores(rank, ranks)
    for index, case in enumerate(cases, first):
        turns = shared.Turns(folder, "PyTorch")
        clock = shared.TurnClock(turns, index, case, rank == 0)
        trainer: Any = Trainer(case, folder)
        for _ in range(case.total_steps):
            trainer.step()
            clock.step_ends()
        clock.report(trainer.mean_loss())
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), shared.from_json(sys.argv[3]))
