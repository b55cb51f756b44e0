"""Features with several windows per video."""

from dataclasses import replace
from pathlib import Path

import torch

from covid_cmsf.clips.records import ClipRecord, FlowInfo
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.search.encoders import open_encoder
from covid_cmsf.search.encoders.base import IndexEncoder
from preprocess.flow import FlowParameters
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


def quick_encoder(path: Path | str, **options: int) -> IndexEncoder:
    """The encoder of a weights file, with flow that is computed quickly."""
    encoder = open_encoder(str(path), num_windows=options.get("num_windows"))
    parameters = FlowParameters(warps=1, nscales=2, outer_iterations=1).model_dump(by_alias=True)
    flow = FlowInfo(backend="opencv", version="", parameters=parameters, bound=20.0)
    return replace(encoder, frames=encoder.frames.model_copy(update={"flow": flow}))
