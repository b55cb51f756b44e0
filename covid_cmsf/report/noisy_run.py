"""The gallery of a run: its images, the labels that it saw, and features of its encoder, brought together by name."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from covid_cmsf.clips import open_clips
from covid_cmsf.config import load_config
from covid_cmsf.evaluation.features import load_features
from covid_cmsf.report.noisy_neighbors import GalleryRow, gallery_rows
from covid_cmsf.training.labels import listed_only, seen_labels
from covid_cmsf.training.run_folder import CONFIG
from covid_cmsf.training.settings import TrainSettings


@dataclass(frozen=True)
class RunGallery:
    """Rows to show, the pictures (H, W, 3) of everyone in them by name, and what classes are called."""

    rows: list[GalleryRow]
    pictures: dict[str, NDArray[np.uint8]]
    class_names: tuple[str, ...]


def run_gallery(
    run: Path, features: Path, *, label: int | None = None, num_found: int = 10, seed: int = 0
) -> RunGallery:
    """`run` is the folder of a run; the features file must have all images that it was trained on."""
    settings = load_config(TrainSettings, run / CONFIG)
    clips, loaded = open_clips(settings.clips), load_features(features)
    trained = listed_only(clips.select(settings.split, settings.part), settings.labels)
    records = {record.video_id: record for record in trained}
    labels = dict(zip(records, seen_labels(trained, settings.labels).tolist(), strict=True))
    rows = [row for row, name in enumerate(loaded.videos.ids) if name in records]
    if len(rows) < len(records):
        raise ValueError(f"{features} has {len(rows)} of the {len(records)} images that {run} was trained on")
    names = [loaded.videos.ids[row] for row in rows]
    found = gallery_rows(
        loaded.features[rows],
        torch.tensor([labels[name] for name in names]),
        loaded.videos.labels[torch.tensor(rows)],
        names,
        label=label,
        num_found=num_found,
        seed=seed,
    )
    shown = {one.name for row in found for one in (*row.found, *([row.query] if row.query else []))}
    pictures = {}
    for name in shown:
        middle = records[name].num_frames // 2
        pictures[name] = clips.read_codes(records[name], "rgb", [middle])[0].permute(1, 2, 0).numpy()
    return RunGallery(found, pictures, loaded.videos.class_names)
