"""A page to look at: the two views of some samples in every modality, as a network sees them."""

# T frames, C channels, H W pixels

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.atomic import atomic_path
from covid_cmsf.clips.flow_colors import flow_to_rgb
from covid_cmsf.views.dataset import Key, ViewDataset
from covid_cmsf.views.modalities import Modality

CELL, LABEL = 1.1, 1.5  # inches


def draw_views(data: ViewDataset, videos: list[int], out: Path, *, num_columns: int = 8, epoch: int = 0) -> None:
    """Writes a PNG: for each video, a row of frames for each view and modality."""
    rows: list[tuple[str, list[NDArray[np.uint8]]]] = []
    for place, video in enumerate(videos):
        sample = data[Key(epoch, place, video)]
        for chosen in data.modalities:
            for name, view in zip(("online", "target"), sample.views, strict=True):
                title = f"{data.records[sample.video].video_id.split('/')[-1]}\n{chosen.name}, {name}"
                rows.append((title, frames_to_show(view[chosen.name], chosen, num_columns)))
    figure = Figure(figsize=(LABEL + CELL * num_columns, CELL * len(rows)), dpi=100)
    axes = figure.subplots(len(rows), num_columns, squeeze=False)
    figure.subplots_adjust(
        left=LABEL / (LABEL + CELL * num_columns), right=1, bottom=0, top=1, wspace=0.03, hspace=0.03
    )
    for row, (title, pictures) in zip(axes, rows, strict=True):
        for axis in row:
            axis.axis("off")
        for axis, picture in zip(row, pictures, strict=False):
            axis.imshow(picture, interpolation="nearest")
        row[0].text(-0.05, 0.5, title, fontsize=6, ha="right", va="center", transform=row[0].transAxes)
    with atomic_path(out) as temporary:
        figure.savefig(temporary, format="png")


def frames_to_show(view: Tensor, chosen: Modality, count: int) -> list[NDArray[np.uint8]]:
    """Evenly spaced frames of a (C, T, H, W) view as (H, W, 3) pictures, the normalization undone."""
    clip = view.unsqueeze(1) if chosen.single_frame else view
    numbers = np.linspace(0, clip.shape[1] - 1, min(count, clip.shape[1])).round().astype(int)
    frames = clip[:, numbers].transpose(0, 1).numpy()  # (T, C, H, W)
    values = frames * np.array(chosen.std).reshape(-1, 1, 1) + np.array(chosen.mean).reshape(-1, 1, 1)
    if chosen.signed_x:
        scale = max(1.0, float(np.percentile(np.hypot(values[:, 0], values[:, 1]), 99)))
        return [flow_to_rgb(one, scale) for one in values]
    if chosen.differences:
        values = values + 0.5
    return [np.rint(one.transpose(1, 2, 0).clip(0, 1) * 255).astype(np.uint8) for one in values]
