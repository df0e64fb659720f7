"""Streams on several ranks: nobody knows how long they are, so ranks look at each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from caldera.comm import Communicator
from caldera.data import Batch, Share
from caldera.errors import DataError
from caldera.train.batch_source import share_of


def synchronised_stream(
    batches: Iterator[Batch | Share], communicator: Communicator
) -> Iterator[Batch | Share]:
    """The batches of a stream, each when all ranks have it; an error on all of them if one has not.

    A rank whose stream has ended would make those wait for ever that still have samples.
    """
    for number, batch in enumerate(chain(batches, [None])):
        count = 0 if batch is None else share_of(batch).count
        everyone = communicator.gather_objects(count)
        if len(set(everyone)) > 1:
            raise DataError.build(
                "fit", expected="the same stream on all ranks, of which each takes its samples",
                got=f"batch {number} of " + ", ".join(map(str, everyone)) + " samples",
                hint="give every rank all of the stream, or write it to shards, of which each "
                "reads its own samples: data.write_shards",
            )  # fmt: skip
        if batch is not None:
            yield batch
