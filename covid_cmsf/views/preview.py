"""Draw the two views of some samples in every modality, as the network's input.

Shapes: T frames, C channels, H x W pixels.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.clips.flow_color import flow_to_rgb
from covid_cmsf.files import atomic_path
from covid_cmsf.views.dataset import SampleKey, ViewDataset
from covid_cmsf.views.modalities import Modality

CELL_SIZE, LABEL_WIDTH = 1.1, 1.5  # inches


def save_view_preview(data: ViewDataset, videos: list[int], out: Path, *, num_columns: int = 8, epoch: int = 0) -> None:
    """Write a PNG: for each video, a row of frames for each view and modality."""
    rows: list[tuple[str, list[NDArray[np.uint8]]]] = []
    for position, video in enumerate(videos):
        sample = data[SampleKey(epoch, position, video)]
        for modality in data.modalities:
            for name, view in zip(("online", "target"), sample.views, strict=True):
                title = f"{data.records[sample.video].video_id.split('/')[-1]}\n{modality.name}, {name}"
                rows.append((title, denormalize_frames(view[modality.name], modality, num_columns)))
    figure = Figure(figsize=(LABEL_WIDTH + CELL_SIZE * num_columns, CELL_SIZE * len(rows)), dpi=100)
    axes = figure.subplots(len(rows), num_columns, squeeze=False)
    figure.subplots_adjust(
        left=LABEL_WIDTH / (LABEL_WIDTH + CELL_SIZE * num_columns), right=1, bottom=0, top=1, wspace=0.03, hspace=0.03
    )
    for row, (title, images) in zip(axes, rows, strict=True):
        for axis in row:
            axis.axis("off")
        for axis, image in zip(row, images, strict=False):
            axis.imshow(image, interpolation="nearest")
        row[0].text(-0.05, 0.5, title, fontsize=6, ha="right", va="center", transform=row[0].transAxes)
    with atomic_path(out) as temporary:
        figure.savefig(temporary, format="png")


def denormalize_frames(view: Tensor, modality: Modality, count: int) -> list[NDArray[np.uint8]]:
    """Undo the normalization of a view (C, T, H, W); return `count` evenly spaced frames as images (H, W, 3)."""
    clip = view.unsqueeze(1) if modality.single_frame else view
    frame_indices = np.linspace(0, clip.shape[1] - 1, min(count, clip.shape[1])).round().astype(int)
    frames = clip[:, frame_indices].transpose(0, 1).numpy()  # (T, C, H, W)
    values = frames * np.array(modality.std).reshape(-1, 1, 1) + np.array(modality.mean).reshape(-1, 1, 1)
    if modality.signed_x:
        scale = max(1.0, float(np.percentile(np.hypot(values[:, 0], values[:, 1]), 99)))
        return [flow_to_rgb(one, scale) for one in values]
    if modality.frame_difference:
        values = values + 0.5
    return [np.rint(one.transpose(1, 2, 0).clip(0, 1) * 255).astype(np.uint8) for one in values]
