"""Draw a contact sheet: a row of frames per video, flow and motion vectors of the same frames below."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure, SubFigure

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.flow_color import color_wheel_image, draw_flow
from covid_cmsf.clips.records import FLOW_MODALITIES, ClipRecord
from covid_cmsf.files import atomic_path

CELL, TITLE = 1.9, 0.3  # inches: width of an image, height of a title


def save_contact_sheet(clips: Clips, records: Sequence[ClipRecord], out: Path, *, num_columns: int = 8) -> None:
    """Write a PNG: per record a row of RGB frames above rows of flow and motion vectors, spread over the video."""
    heights = [_height(clips, record) for record in records]
    figure = Figure(figsize=(CELL * num_columns, sum(heights)), dpi=100)
    areas = figure.subfigures(len(records), 1, squeeze=False, height_ratios=heights)[:, 0]
    for area, record, height in zip(areas, records, heights, strict=True):
        _draw_clip(area, clips, record, num_columns, top=1 - TITLE / height)
    with atomic_path(out) as temporary:
        figure.savefig(temporary, format="png")


def pick_examples(records: Sequence[ClipRecord], most: int) -> list[ClipRecord]:
    """Return the first video of each class, at most `most`; if nothing is labeled, videos spread over all of them."""
    first_of_class: dict[str, ClipRecord] = {}
    for record in records:
        first_of_class.setdefault(record.class_name, record)
    if set(first_of_class) != {""}:
        return list(first_of_class.values())[:most]
    count = min(most, len(records))
    return [records[i * len(records) // count] for i in range(count)]


def _moving(clips: Clips, record: ClipRecord) -> list[str]:
    return [name for name in FLOW_MODALITIES if name in clips.modalities and record.num_flow]


def _height(clips: Clips, record: ClipRecord) -> float:
    aspect = record.height / record.width if record.width else 0.75
    return TITLE + CELL * aspect * (1 + len(_moving(clips, record)))


def _draw_clip(area: SubFigure, clips: Clips, record: ClipRecord, num_columns: int, *, top: float) -> None:
    count = record.num_flow or record.num_frames
    frame_indices = np.linspace(0, count - 1, min(num_columns, count)).round().astype(int).tolist()
    rows = [[image.permute(1, 2, 0).numpy() for image in clips.read(record, "rgb", frame_indices)]]
    scale = 0.0
    for modality in _moving(clips, record):
        flow = clips.read(record, modality, frame_indices).numpy()
        flow_images, scale = draw_flow(flow, clips.flow_levels(record))
        rows.append(flow_images)
    axes = area.subplots(len(rows), num_columns, squeeze=False)
    area.subplots_adjust(left=0.005, right=0.995, bottom=0.01, top=top, wspace=0.03, hspace=0.03)
    for axis in axes.flat:
        axis.axis("off")
    for row, images in zip(axes, rows, strict=True):
        for axis, image in zip(row, images, strict=False):
            axis.imshow(image, interpolation="nearest")
    for axis, frame_index in zip(axes[0], frame_indices, strict=False):
        axis.text(0.03, 0.95, str(frame_index), color="white", fontsize=7, va="top", transform=axis.transAxes,
                  bbox={"facecolor": "black", "alpha": 0.5, "pad": 1, "linewidth": 0})  # fmt: skip
    title = f"{record.video_id!r}   {record.num_frames} frames of {record.width}x{record.height}, {record.fps:.5g} fps"
    if len(rows) > 1:
        title += f"   full color: {scale:.2g} px per frame"
        legend = axes[1][0].inset_axes([0.0, 0.0, 0.22, 0.22 * record.width / max(1, record.height)])
        legend.imshow(color_wheel_image(64))
        legend.axis("off")
    area.suptitle(title.replace("$", r"\$"), fontsize=9, y=0.985, x=0.008, ha="left")
