"""What every collection of clips can do, whatever its format on disk."""

# T frames, H W pixels

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from covid_cmsf.clips.flow_codes import decode_flow
from covid_cmsf.clips.manifest import ClipRecord


class Clips(ABC):
    """Clips on disk. Frame i of `rgb` and of `flow` belong together: flow i is the motion from frame i to i+1."""

    records: list[ClipRecord]
    splits: Mapping[str, Mapping[str, str]]  # {"1": {video_id: "train"}}
    modalities: tuple[str, ...]  # what can be read: rgb, flow
    flow_bound: float  # pixels
    still: bool = False  # images: one frame each, to be seen as modality `frame`

    @abstractmethod
    def read_codes(self, record: ClipRecord, modality: str, frame_numbers: Sequence[int]) -> Tensor:
        """uint8: `rgb` (T, 3, H, W); `flow` (T, 2, H, W) as stored (see `flow_codes`), cheaper to move to a GPU."""

    def read(self, record: ClipRecord, modality: str, frame_numbers: Sequence[int]) -> Tensor:
        """`rgb`: uint8 (T, 3, H, W). `flow`: float32 (T, 2, H, W) in pixels, x first."""
        codes = self.read_codes(record, modality, frame_numbers)
        return torch.from_numpy(decode_flow(codes.numpy(), self.flow_bound)) if modality == "flow" else codes

    def select(self, split: str, part: str) -> list[ClipRecord]:
        """The records of one part (train, test, val) of a split ("1", ...); an unknown or empty one is an error."""
        if split not in self.splits:
            raise ValueError(f"no split {split!r}; there are {', '.join(self.splits) or 'none'}")
        chosen = [record for record in self.records if self.splits[split].get(record.video_id) == part]
        if not chosen:
            parts = sorted(set(self.splits[split].values()))
            raise ValueError(f"no video is in part {part!r} of split {split!r}; parts are {', '.join(parts)}")
        return chosen


def check_request(record: ClipRecord, modality: str, frame_numbers: Sequence[int], modalities: Sequence[str]) -> None:
    """ValueError unless there is such a modality and the video has all of these frames."""
    if modality not in modalities:
        raise ValueError(f"no modality {modality!r} here; there is {', '.join(modalities)}")
    if len(frame_numbers) == 0:
        raise ValueError("no frame numbers to read")
    count = record.num_flow if modality == "flow" else record.num_frames
    low, high = min(frame_numbers), max(frame_numbers)
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        raise ValueError(f"{record.video_id} has {modality} frames 0 to {count - 1}; asked for {wrong}")
