"""Read folders of JPEG frames: `<Class>/<video>/img_00001.jpg`, `flow_x_00001.jpg`, `flow_y_00001.jpg`.

The layout of denseflow, mmaction and TSN ("rawframes"). File numbers start at 1, frame indices at 0.
Shapes: T frames, H x W pixels.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.clips.base import Clips, check_request
from covid_cmsf.clips.formats.jpeg import read_gray, read_rgb
from covid_cmsf.clips.names import check_video_ids, guess_source
from covid_cmsf.clips.records import ClipRecord

FIRST_FRAME = "img_00001.jpg"


def is_rawframes(path: Path) -> bool:
    """Return whether some video folder below `path` has a first frame."""
    return path.is_dir() and next(path.rglob(FIRST_FRAME), None) is not None


class RawFrames(Clips):
    """Clips as folders of JPEG frames; flow is quantized as in `flow_codec` (denseflow's default bound is 20)."""

    def __init__(
        self,
        path: Path,
        records: list[ClipRecord],
        *,
        bound: float = 20.0,
        splits: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.path, self.records, self.flow_bound = path, records, bound
        self.splits = splits or {}
        self.modalities = ("rgb", "flow") if any(record.num_flow for record in records) else ("rgb",)

    @classmethod
    def open(
        cls, path: Path, *, bound: float = 20.0, splits: Mapping[str, Mapping[str, str]] | None = None
    ) -> "RawFrames":
        """Open every video folder below `path` and count its frames."""
        folders = sorted(first.parent for first in path.rglob(FIRST_FRAME))
        if not folders:
            raise ValueError(f"no folder below {path} has an {FIRST_FRAME}")
        names = [folder.relative_to(path).as_posix() for folder in folders]
        check_video_ids(names, path)
        classes = sorted({name.split("/")[0] for name in names if "/" in name})
        records = [_read_record(folder, name, classes) for folder, name in zip(folders, names, strict=True)]
        return cls(path, records, bound=bound, splits=splits)

    def files(self, record: ClipRecord, modality: str) -> list[Path]:
        """Return the first and the last frame: a video may have thousands."""
        count, prefix = (record.num_flow, "flow_x") if modality == "flow" else (record.num_frames, "img")
        return [self.path / record.video_id / f"{prefix}_{number:05d}.jpg" for number in (1, count)]

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """Return stored uint8 values: `rgb` (T, 3, H, W); `flow` (T, 2, H, W), x first."""
        check_request(record, modality, frame_indices, self.modalities)
        folder = self.path / record.video_id
        if modality == "rgb":
            paths = [folder / f"img_{number + 1:05d}.jpg" for number in frame_indices]
            return torch.from_numpy(np.stack([read_rgb(path) for path in paths])).permute(0, 3, 1, 2)
        pairs = [[folder / f"flow_{axis}_{number + 1:05d}.jpg" for axis in "xy"] for number in frame_indices]
        return torch.from_numpy(np.stack([[read_gray(path) for path in pair] for pair in pairs]))


def _read_record(folder: Path, name: str, classes: list[str]) -> ClipRecord:
    num_frames, num_x, num_y = (_count_frames(folder, prefix) for prefix in ("img_", "flow_x_", "flow_y_"))
    if num_x != num_y:
        raise ValueError(f"{folder} has {num_x} flow_x and {num_y} flow_y images; they must be as many")
    height, width = read_rgb(folder / FIRST_FRAME).shape[:2]
    class_name = name.split("/")[0] if "/" in name else ""
    label = classes.index(class_name) if class_name else -1
    num_flow = min(num_x, num_frames)
    return ClipRecord(name, guess_source(name), class_name, label, num_frames, num_flow, 0.0, width, height, "")


def _count_frames(folder: Path, prefix: str) -> int:
    """Return the number of files `<prefix>NNNNN.jpg`; ValueError if a number from 1 on is missing."""
    numbers = sorted(int(path.stem[len(prefix) :]) for path in folder.iterdir() if path.name.startswith(prefix))
    if numbers != list(range(1, len(numbers) + 1)):
        missing = next(i for i in range(1, len(numbers) + 2) if i not in set(numbers))
        raise ValueError(f"{folder}: {prefix}{missing:05d}.jpg is missing")
    return len(numbers)
