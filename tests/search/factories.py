"""Features with several windows per video."""

from dataclasses import replace

import torch

from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VideoTable
from tests.evaluation.factories import synthetic_features


def windowed_features(num_videos: int = 7, *, num_values: int = 12, seed: int = 0, labeled: bool = False) -> Features:
    """Random features; video i has 1 to 3 windows, 4 frames apart, listed in random order."""
    generator = torch.Generator().manual_seed(seed)
    records = [
        ClipRecord(f"v{i}", f"s{i // 2}", f"c{i % 2}" if labeled else "", i % 2 if labeled else -1,
                   40, 39, 25.0, 8, 8, "")
        for i in range(num_videos)
    ]  # fmt: skip
    pairs = [(video, 4 * number) for video in range(num_videos) for number in range(1 + video % 3)]
    order = torch.randperm(len(pairs), generator=generator).tolist()
    base = synthetic_features()
    return replace(
        base,
        videos=VideoTable.from_records(records, ["train"] * num_videos),
        features=torch.randn(num_videos, num_values, generator=generator),
        windows=torch.randn(len(pairs), num_values, generator=generator) + 0.5,
        window_videos=torch.tensor([pairs[i][0] for i in order]),
        window_starts=torch.tensor([pairs[i][1] for i in order]),
    )
