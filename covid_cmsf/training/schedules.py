"""Schedules of learning rate and EMA momentum: pure functions of the progress, without state to save."""

import math
from typing import Literal


def learning_rate(
    lr: float,
    progress: float,
    *,
    epochs: int,
    name: Literal["step", "cosine", "constant"],
    milestones: tuple[int, ...] = (),
    gamma: float = 0.1,
    interval: Literal["epoch", "step"] = "epoch",
    warmup_epochs: float = 0.0,
) -> float:
    """Return the learning rate after `progress` epochs (fractions count within an epoch)."""
    if progress < warmup_epochs:
        return lr * progress / warmup_epochs
    if name == "step":
        return lr * gamma ** sum(progress >= milestone for milestone in milestones)
    if name == "cosine":
        position = math.floor(progress) if interval == "epoch" else progress
        return lr * 0.5 * (1 + math.cos(math.pi * min(position / epochs, 1)))
    return lr


def ema_momentum(momentum: float, progress: float, *, epochs: int, schedule: Literal["constant", "cosine"]) -> float:
    """Return the momentum: constant, or rising from `momentum` to 1 at the end (BYOL)."""
    if schedule == "constant":
        return momentum
    return 1 - (1 - momentum) * 0.5 * (1 + math.cos(math.pi * min(progress / epochs, 1)))
