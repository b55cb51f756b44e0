"""Draw the two views of some samples in every modality, as the network's input.

Shapes: T frames, C channels, H x W pixels.
"""

import logging
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.clips.flow_color import color_wheel_image, draw_flow
from covid_cmsf.clips.sampling import clip_span
from covid_cmsf.files import atomic_path
from covid_cmsf.views.dataset import DrawnView, SampleKey, ViewDataset, num_usable_frames
from covid_cmsf.views.modalities import Modality

logger = logging.getLogger(__name__)
CELL_SIZE, LABEL_WIDTH = 1.1, 2.0  # inches
LABEL_CHARACTERS = 29  # that fit into the width of a label
STRENGTHS = {
    "coclr": "strong (CoCLR's)",
    "coclr_weak": "weak (CoCLR's)",
    "std": "standard",
}  # others: the preset's name


@dataclass(frozen=True)
class PreviewRow:
    """One view in one modality; `scale` is the speed of full color, 0 if it is not flow."""

    label: str
    images: list[NDArray[np.uint8]]
    frame_numbers: list[int]
    scale: float = 0.0


def save_view_preview(data: ViewDataset, videos: list[int], out: Path, *, num_columns: int = 8, epoch: int = 0) -> None:
    """Write a PNG: for each video, a row of frames for each view and modality, with the frames' numbers."""
    warn_of_padding(data, videos)
    rows: list[PreviewRow] = []
    for position, video in enumerate(videos):
        key = SampleKey(epoch, position, video)
        sample = data[key]
        if sample.read_error:
            raise ValueError(f"a video can't be shown: {sample.read_error}")
        drawn_views = data.drawn_views(key)
        for modality in data.modalities:
            for name, view, drawn in zip(("online", "target"), sample.views, drawn_views, strict=True):
                video_id = data.records[video].video_id
                rows.append(make_row(video_id, name, view[modality.name], modality, drawn, num_columns, sample.levels))
    num_columns = max(len(row.images) for row in rows)
    figure = Figure(figsize=(LABEL_WIDTH + CELL_SIZE * num_columns, CELL_SIZE * len(rows)), dpi=100)
    axes = figure.subplots(len(rows), num_columns, squeeze=False)
    left = LABEL_WIDTH / (LABEL_WIDTH + CELL_SIZE * num_columns)
    figure.subplots_adjust(left=left, right=1, bottom=0, top=1, wspace=0.03, hspace=0.03)
    for cells, row in zip(axes, rows, strict=True):
        _draw_row(cells, row)
    with atomic_path(out) as temporary:
        figure.savefig(temporary, format="png")


def warn_of_padding(data: ViewDataset, videos: list[int]) -> None:
    """Warn if videos are shorter than a clip, so that frames are repeated."""
    config, records = data.config, [data.records[video] for video in videos]
    span = clip_span(config.length, config.stride)
    short = [record for record in records if num_usable_frames(record, data.modalities) < span]
    if short:
        logger.warning(
            "a clip spans %d frames (length %d, stride %d), which %d of the %d videos do not have; %s has %d: frames "
            "are repeated (pad_mode %s)",
            span, config.length, config.stride, len(short), len(records),
            short[0].video_id, num_usable_frames(short[0], data.modalities), config.pad_mode,
        )  # fmt: skip


def make_row(
    video_id: str,
    view_name: str,
    view: Tensor,
    modality: Modality,
    drawn: DrawnView,
    num_columns: int,
    levels: FlowLevels,
) -> PreviewRow:
    """Return the row of a view (C, T, H, W), or (C, H, W) of an image."""
    frame_numbers = [drawn.single_frame] if modality.single_frame else drawn.frame_indices
    shown = np.linspace(0, len(frame_numbers) - 1, min(num_columns, len(frame_numbers))).round().astype(int)
    if modality.spectrogram:
        frame_numbers, shown = drawn.frame_indices[:1], np.array([0])  # one picture, which begins there
    clip = view.unsqueeze(1) if modality.is_image else view
    values = denormalize(clip[:, shown].transpose(0, 1).numpy(), modality)  # (T, C, H, W)
    strength = STRENGTHS.get(drawn.preset, drawn.preset)
    lines = [*textwrap.wrap(video_id, LABEL_CHARACTERS, max_lines=3), f"{modality.name}, {view_name}: {strength}"]
    if modality.signed_x:
        images, scale = draw_flow(values, levels)
        lines.append(f"full color: {scale:.2g} px per frame")
    else:
        scale = 0.0
        pixels = np.rint(values.transpose(0, 2, 3, 1).clip(0, 1) * 255).astype(np.uint8)
        images = list(pixels[..., 0] if modality.spectrogram else pixels)
    return PreviewRow("\n".join(lines), images, [frame_numbers[index] for index in shown], scale)


def denormalize(frames: NDArray[np.float32], modality: Modality) -> NDArray[np.float32]:
    """Undo the normalization of frames (T, C, H, W): images in 0..1, flow in pixels."""
    std, mean = (np.array(values, np.float32).reshape(-1, 1, 1) for values in (modality.std, modality.mean))
    values: NDArray[np.float32] = frames * std + mean
    return values + np.float32(0.5) if modality.frame_difference else values


def _draw_row(cells: NDArray[Any], row: PreviewRow) -> None:
    for axis in cells:
        axis.axis("off")
    for axis, image, number in zip(cells, row.images, row.frame_numbers, strict=False):
        axis.imshow(image, interpolation="nearest", cmap="magma", vmin=0, vmax=255)  # colors are for spectrograms
        axis.text(0.03, 0.96, str(number), color="white", fontsize=6, va="top", transform=axis.transAxes,
                  bbox={"facecolor": "black", "alpha": 0.5, "pad": 1, "linewidth": 0})  # fmt: skip
    label = row.label.replace("$", r"\$")
    x = -(LABEL_WIDTH - 0.08) / CELL_SIZE  # in widths of a cell, left of the first one
    cells[0].text(x, 0.5, label, fontsize=6.5, ha="left", va="center", transform=cells[0].transAxes)
    if row.scale:
        wheel = cells[0].inset_axes([0.0, 0.0, 0.25, 0.25])
        wheel.imshow(color_wheel_image(64))
        wheel.axis("off")
