"""Draw a contact sheet: a row of frames per video, flow and motion vectors of the same frames below."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.flow_color import color_wheel_image, draw_flow
from covid_cmsf.clips.records import FLOW_MODALITIES, ClipRecord
from covid_cmsf.files import atomic_path

CELL, LABEL, TITLE_LINE = 1.9, 1.3, 0.17  # inches: width of an image, width of a row's label, height of a line
CHARACTERS_PER_INCH = 7  # of a title, if all are as wide as W


@dataclass(frozen=True)
class SheetRow:
    """Some frames in one modality; `scale` is the speed of full color in pixels, 0 if it is not flow."""

    modality: str
    images: list[NDArray[np.uint8]]
    frame_indices: list[int]
    scale: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.modality}\nfull color:\n{self.scale:.2g} px per frame" if self.scale else self.modality


def save_contact_sheet(clips: Clips, records: Sequence[ClipRecord], out: Path, *, num_columns: int = 8) -> None:
    """Write a PNG: per record a row of RGB frames above rows of flow and motion vectors, spread over the video."""
    width = LABEL + CELL * num_columns
    titles = [make_title(record, width) for record in records]
    title_heights = [TITLE_LINE * (len(title) + 1) for title in titles]
    heights = [above + _height(clips, record) for above, record in zip(title_heights, records, strict=True)]
    figure = Figure(figsize=(width, sum(heights)), dpi=100)
    areas = figure.subfigures(len(records), 1, squeeze=False, height_ratios=heights)[:, 0]
    for area, record, title, above, height in zip(areas, records, titles, title_heights, heights, strict=True):
        draw_rows(area, make_rows(clips, record, num_columns), num_columns, left=LABEL / width, top=1 - above / height)
        area.text(0.08 / width, 1 - TITLE_LINE / 2 / height, "\n".join(title), fontsize=9, va="top", parse_math=False)
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
    return CELL * aspect * (1 + len(_moving(clips, record)))


def make_title(record: ClipRecord, width: float) -> list[str]:
    """Return the lines that name a video, none wider than `width` inches."""
    details = f"{record.num_frames} frames of {record.width}x{record.height}, {record.fps:.5g} fps"
    characters = int(width * CHARACTERS_PER_INCH)
    return textwrap.wrap(f"{record.video_id!r}   {details}", characters, break_on_hyphens=False)


def make_rows(clips: Clips, record: ClipRecord, num_columns: int) -> list[SheetRow]:
    """Return RGB, and every kind of flow that the video has, each with a scale of its own."""
    count = record.num_flow or record.num_frames
    frame_indices: list[int] = np.linspace(0, count - 1, min(num_columns, count)).round().astype(int).tolist()
    frames = [image.permute(1, 2, 0).numpy() for image in clips.read(record, "rgb", frame_indices)]
    rows = [SheetRow("rgb", frames, frame_indices)]
    for modality in _moving(clips, record):
        flow = clips.read(record, modality, frame_indices).numpy()
        images, scale = draw_flow(flow, clips.flow_levels(record))
        rows.append(SheetRow(modality, images, frame_indices, scale))
    return rows


def draw_rows(area: SubFigure, rows: list[SheetRow], num_columns: int, *, left: float, top: float) -> None:
    """Draw each row with its label on the left; flow has the color wheel on its first frame."""
    axes = area.subplots(len(rows), num_columns, squeeze=False)
    area.subplots_adjust(left=left, right=0.995, bottom=0.01, top=top, wspace=0.03, hspace=0.03)
    for cells, row in zip(axes, rows, strict=True):
        _draw_row(cells, row)


def _draw_row(cells: NDArray[Any], row: SheetRow) -> None:
    for axis in cells:
        axis.axis("off")
    for axis, image, frame_index in zip(cells, row.images, row.frame_indices, strict=False):
        axis.imshow(image, interpolation="nearest")
        axis.text(0.03, 0.95, str(frame_index), color="white", fontsize=7, va="top", transform=axis.transAxes,
                  bbox={"facecolor": "black", "alpha": 0.5, "pad": 1, "linewidth": 0})  # fmt: skip
    cells[0].text(-(LABEL - 0.08) / CELL, 0.5, row.label, fontsize=8, va="center", transform=cells[0].transAxes)
    if row.scale:
        height, width = row.images[0].shape[:2]
        wheel = cells[0].inset_axes([0.0, 0.0, 0.22, 0.22 * width / height])
        wheel.imshow(color_wheel_image(64))
        wheel.axis("off")
