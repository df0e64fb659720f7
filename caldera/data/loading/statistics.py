"""What a pipeline took and how it was tuned, for who wants to know."""

from __future__ import annotations

from dataclasses import dataclass, field

from caldera.data.loading.tuner import LoaderSetting


@dataclass
class PipelineStatistics:
    """Adds up what batches took.

    >>> from caldera.data.loading.tuner import LoaderSetting
    >>> from caldera.data.loading.statistics import PipelineStatistics
    >>> usage = PipelineStatistics()
    >>> usage.add((0.002, 0.004), waiting=0.001, setting=LoaderSetting(2, 4))
    >>> print(usage.text(["Crop"]))
    stage         ms a batch
    read               2.000
    Crop               4.000
    2 workers, at most 4 batches ahead; 1 batch, waited for 1.000 ms each
    """

    batches: int = 0
    waited: float = 0.0
    seconds: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    setting: LoaderSetting = field(default_factory=lambda: LoaderSetting(0, 0))

    def add(self, seconds: tuple[float, ...], waiting: float, setting: LoaderSetting) -> None:
        """Note a batch: the seconds of each stage, and how long training waited for it."""
        self.batches += 1
        self.waited += waiting
        self.setting = setting
        missing = len(seconds) - len(self.seconds)
        self.seconds += [0.0] * missing
        self.counts += [0] * missing
        for number, each in enumerate(seconds):
            self.seconds[number] += each
            self.counts[number] += 1

    def text(self, stages: list[str]) -> str:
        """A table of the stages with these names, and how it was tuned."""
        lines = ["stage         ms a batch"]
        host = self.setting.host_stages
        for number, name in enumerate(["read", *stages]):
            if host is not None and number > host:
                lines.append(f"{name:<12} on the device")
            elif number < len(self.seconds):
                mean = self.seconds[number] / max(self.counts[number], 1)
                lines.append(f"{name:<12} {1e3 * mean:>11.3f}")
        workers = _counted(self.setting.workers, "worker")
        if not self.setting.workers:
            workers = "no workers: made by the thread that trains"
        else:
            workers += f", at most {_counted(self.setting.prefetch, 'batch')} ahead"
        wait = 1e3 * self.waited / max(self.batches, 1)
        lines.append(f"{workers}; {_counted(self.batches, 'batch')}, waited for {wait:.3f} ms each")
        return "\n".join(lines)


def _counted(count: int, noun: str) -> str:
    """A number of things.

    >>> _counted(1, "batch"), _counted(2, "batch"), _counted(2, "worker")
    ('1 batch', '2 batches', '2 workers')
    """
    plural = "es" if noun.endswith("h") else "s"
    return f"{count} {noun}{'' if count == 1 else plural}"
