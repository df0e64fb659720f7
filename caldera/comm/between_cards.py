"""Ranks that each have a card talk through NCCL."""

from __future__ import annotations

from importlib.util import find_spec

from caldera.comm.communicator import Communicator
from caldera.comm.nccl import NcclCommunicator
from caldera.config import settings
from caldera.memory.gpus import card_count, cupy, own_card


def between_cards(host: Communicator) -> Communicator:
    """A communicator of the same ranks that goes from card to card, if each rank has its own; else
    the one that was given, which takes what lies on a card through the host.

    NCCL takes one rank a card, so ranks that share one cannot use it. All ranks call this.

    >>> from caldera.comm import run_virtual_ranks
    >>> from caldera.comm.between_cards import between_cards
    >>> run_virtual_ranks(2, lambda comm: between_cards(comm) is comm)   # one card or none
    [True, True]
    """
    wanted = settings.accelerator != "cpu" and card_count() > 0
    usable = wanted and find_spec("cupy.cuda.nccl") is not None
    mine = cupy().cuda.runtime.deviceGetPCIBusId(own_card()) if usable else None
    everyone = host.gather_objects(mine)
    cards = set(zip(host.nodes, everyone, strict=True))
    if None in everyone or len(cards) < host.size:
        return host
    return NcclCommunicator(host, own_card())
