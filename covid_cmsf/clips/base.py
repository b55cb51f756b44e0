"""The interface of every collection of clips, independent of its format on disk.

Shapes: T frames, H x W pixels.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.clips.records import FLOW_MODALITIES, ClipRecord, StoreInfo, get_column, take_records


class Clips(ABC):
    """Clips on disk. Flow i is the motion from RGB frame i to frame i + 1, in pixels.

    Example:
        >>> clips = cc.open_clips("clips/ucf101")
        >>> record = clips.select("1", "train")[0]
        >>> rgb, flow = (clips.read(record, modality, [0, 1, 2]) for modality in ("rgb", "flow"))
        >>> rgb.shape, flow.shape
        (torch.Size([3, 3, 48, 64]), torch.Size([3, 2, 48, 64]))
    """

    records: Sequence[ClipRecord]
    splits: Mapping[str, Mapping[str, str]]  # {"1": {video_id: "train"}}
    modalities: tuple[str, ...]  # stored modalities: rgb, flow, motion, audio
    flow_bound: float  # pixels: stored flow is clipped to +-flow_bound; 0: it differs between videos
    num_flow_levels: Literal[255, 256] = 256  # see `flow_codec`; 256 as in the data of other projects
    info: StoreInfo | None = None  # how a clip store was made
    address: str = ""  # what `open_clips` was given
    is_image: bool = False  # a set of images: one frame per record, modality `frame`

    @abstractmethod
    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """Return uint8 `rgb` (T, 3, H, W), or quantized `flow` or `motion` (T, 2, H, W), or `audio` (T, 1, H, W)."""

    def read(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """Return uint8 `rgb` (T, 3, H, W), or `audio` (T, 1, H, W), or pixels of `flow` or `motion` (T, 2, H, W)."""
        raw = self.read_raw(record, modality, frame_indices)
        return torch.from_numpy(self.flow_levels(record).decode(raw.numpy())) if modality in FLOW_MODALITIES else raw

    def flow_levels(self, record: ClipRecord) -> FlowLevels:
        """Return how the flow of a video, and its motion vectors, are quantized."""
        return FlowLevels(record.flow_bound or self.flow_bound, self.num_flow_levels)

    def check_flow_as_image(self) -> None:
        """Raise ValueError if levels of flow can't be compared between videos, as networks of CoCLR do."""
        if self.info is not None and self.info.flow is not None and self.info.flow.bound == "auto":
            raise ValueError(
                "flow as an image (flow_style coclr, CoCLR's weights) needs a bound that follows the frame size; these "
                "clips were made with --flow-bound auto"
            )

    def files(self, record: ClipRecord, modality: str) -> list[Path]:
        """Return files that hold these frames, for `fingerprint`; none if the clips are in memory."""
        return []

    def select(self, split: str, subset: str) -> Sequence[ClipRecord]:
        """Return the records of a subset (train, val, test) of a split ("1", ...); ValueError if there are none."""
        if split not in self.splits:
            there = f"splits: {', '.join(self.splits)}" if self.splits else "none; name a file with PATH?splits=FILE"
            raise ValueError(f"no split {split!r}; these clips have {there}")
        subset_of = self.splits[split]
        ids = get_column(self.records, "video_id")
        chosen = [index for index, video_id in enumerate(ids) if subset_of.get(video_id) == subset]
        if not chosen:
            subsets = sorted(set(subset_of.values()))
            raise ValueError(f"no video in subset {subset!r} of split {split!r}; it has: {', '.join(subsets)}")
        return take_records(self.records, chosen)


def check_request(record: ClipRecord, modality: str, frame_indices: Sequence[int], modalities: Sequence[str]) -> None:
    """Raise ValueError unless `modality` is one of `modalities` and the video has all `frame_indices`."""
    if modality not in modalities:
        raise ValueError(f"no modality {modality!r} in these clips; they have {', '.join(modalities)}")
    if len(frame_indices) == 0:
        raise ValueError("frame_indices is empty; at least one frame is needed")
    num_available = record.num_flow if modality in FLOW_MODALITIES else record.num_frames
    low, high = min(frame_indices), max(frame_indices)
    if low < 0 or high >= num_available:
        invalid = low if low < 0 else high
        raise ValueError(f"{record.video_id} has {modality} frames 0 to {num_available - 1}; asked for {invalid}")
