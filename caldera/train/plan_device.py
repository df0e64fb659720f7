"""The device that the plans of a model are made for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caldera.base.config import settings
from caldera.core.memory import Device

if TYPE_CHECKING:
    from caldera.train.model_settings import ModelSettings


def device_of_plans(model: ModelSettings, *, several_ranks: bool = False) -> Device | None:
    """Where plans compute what is not pinned; None where `settings.placement` decides, because it
    names a device or because several take part."""
    if several_ranks:
        return model.device
    mixed = bool(model.pinned_variables()) or model.optimizer.apart is not None
    return None if mixed or settings.placement != "auto" else model.device
