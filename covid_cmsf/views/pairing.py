"""Which clip and which augmentation each of the two views gets.

`weak_strong` is the paper's: the online view strong, the target view weak. `coclr` is Han et al.'s mixture: half of
the time one clip serves both views, one of them strong and one weak; otherwise two clips, each strong with
probability 0.3.
"""

from dataclasses import dataclass

import numpy as np

PAIRINGS = ("weak_strong", "strong_strong", "strong_weak", "weak_weak", "std_std", "coclr")


@dataclass(frozen=True)
class ViewPlan:
    """One view: from the first clip or the second (0, 1), with the preset of that name."""

    clip: int
    preset: str


def plan_pair(pairing: str, rng: np.random.Generator, *, num_clips: int = 2) -> tuple[ViewPlan, ViewPlan]:
    """(online, target). With `num_clips=1` both views come from one clip, except that `coclr` decides by itself."""
    if pairing == "coclr":
        return _coclr(rng)
    if pairing not in PAIRINGS:
        raise ValueError(f"unknown pairing {pairing!r}; choose from {', '.join(PAIRINGS)}")
    target, online = pairing.split("_")  # named as in the official code: target/online
    return ViewPlan(0, online), ViewPlan(num_clips - 1, target)


def _coclr(rng: np.random.Generator) -> tuple[ViewPlan, ViewPlan]:
    one_clip, first_strong, second_strong, which = rng.random(4)
    if one_clip < 0.5:
        presets = ("coclr", "coclr_weak") if which < 0.5 else ("coclr_weak", "coclr")
        return ViewPlan(0, presets[0]), ViewPlan(0, presets[1])
    return (
        ViewPlan(0, "coclr" if first_strong < 0.3 else "coclr_weak"),
        ViewPlan(1, "coclr" if second_strong < 0.3 else "coclr_weak"),
    )
