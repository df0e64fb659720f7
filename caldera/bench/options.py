"""What a run of the bench is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.bench.workloads import Case, TrainingCase


@dataclass(frozen=True)
class Options:
    """What a run measures, and how long.

    >>> Options(["mlp"], quick=True).rounds
    3
    """

    works: Sequence[str]
    peers: Sequence[str] = ()
    accuracies: Sequence[str] = ("strict", "fast")
    threads: int = 1
    repeats: int | None = None
    quick: bool = False
    compile: bool = True
    """Whether torch.compile takes part; it needs minutes for each large network."""
    test_accuracy: int = 0
    """Epochs on real data; 0 for none."""
    device: str = "cpu"
    precisions: Sequence[str] = ()
    """On a card; without any, those of each work."""
    settings: Sequence[str] = ()
    """On a card: words, of which a contestant's label must have one; without any, all take part."""
    limit: float | None = None
    """Seconds that a contestant may take for everything in a case."""

    @property
    def on_card(self) -> bool:
        """Whether a card is measured."""
        return self.device != "cpu"

    @property
    def rounds(self) -> int:
        """Turns of each contestant."""
        return self.repeats or (3 if self.quick else 7)

    def precisions_of(self, case: TrainingCase) -> Sequence[str]:
        """In which a case is measured on a card."""
        return self.precisions or case.precisions

    def seconds(self, case: Case) -> float:
        """Of one turn."""
        if not isinstance(case, TrainingCase):
            return 0.05 if self.quick else 0.15
        return 0.3 if self.quick else 1.0
