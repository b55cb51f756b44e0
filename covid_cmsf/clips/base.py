"""What every collection of clips can do, whatever its format on disk."""

# T frames, H W pixels

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from covid_cmsf.clips.flow_codec import decode_flow
from covid_cmsf.clips.records import ClipRecord


class Clips(ABC):
    """Clips on disk. Frame i of `rgb` and of `flow` belong together: flow i is the motion from frame i to i+1."""

    records: list[ClipRecord]
    splits: Mapping[str, Mapping[str, str]]  # {"1": {video_id: "train"}}
    modalities: tuple[str, ...]  # what can be read: rgb, flow
    flow_bound: float  # pixels
    is_image: bool = False  # images: one frame each, to be seen as modality `frame`

    @abstractmethod
    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """uint8: `rgb` (T, 3, H, W); `flow` (T, 2, H, W) as stored (see `flow_codec`), cheaper to move to a GPU."""

    def read(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """`rgb`: uint8 (T, 3, H, W). `flow`: float32 (T, 2, H, W) in pixels, x first."""
        raw = self.read_raw(record, modality, frame_indices)
        return torch.from_numpy(decode_flow(raw.numpy(), self.flow_bound)) if modality == "flow" else raw

    def select(self, split: str, subset: str) -> list[ClipRecord]:
        """The records of one subset (train, test, val) of a split ("1", ...); an unknown or empty one is an error."""
        if split not in self.splits:
            raise ValueError(f"no split {split!r}; there are {', '.join(self.splits) or 'none'}")
        chosen = [record for record in self.records if self.splits[split].get(record.video_id) == subset]
        if not chosen:
            subsets = sorted(set(self.splits[split].values()))
            raise ValueError(f"no video is in subset {subset!r} of split {split!r}; subsets are {', '.join(subsets)}")
        return chosen


def check_request(record: ClipRecord, modality: str, frame_indices: Sequence[int], modalities: Sequence[str]) -> None:
    """ValueError unless there is such a modality and the video has all of these frames."""
    if modality not in modalities:
        raise ValueError(f"no modality {modality!r} here; there is {', '.join(modalities)}")
    if len(frame_indices) == 0:
        raise ValueError("no frame numbers to read")
    num_available = record.num_flow if modality == "flow" else record.num_frames
    low, high = min(frame_indices), max(frame_indices)
    if low < 0 or high >= num_available:
        invalid = low if low < 0 else high
        raise ValueError(f"{record.video_id} has {modality} frames 0 to {num_available - 1}; asked for {invalid}")
