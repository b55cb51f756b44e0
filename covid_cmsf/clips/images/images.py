"""What all sets of images share: one frame each, parts `train` and `test`, ids that begin with the part."""

# T frames, H W pixels

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.clips.interface import Clips, check_request
from covid_cmsf.clips.manifest import ClipRecord

SPLIT = "1"


class Images(Clips):
    """Images as clips of one frame. Every image is its own source."""

    modalities = ("rgb",)
    still = True
    flow_bound = 20.0

    def __init__(self, records: list[ClipRecord]) -> None:
        self.keep_(records)

    def keep_(self, records: list[ClipRecord]) -> None:
        """Only these images are there from now on."""
        self.records = records
        self.splits = {SPLIT: {record.video_id: record.video_id.split("/")[0] for record in records}}

    @abstractmethod
    def picture(self, record: ClipRecord) -> NDArray[np.uint8]:
        """(H, W, 3) or, gray, (H, W); ValueError or OSError when it cannot be read."""

    def read_codes(self, record: ClipRecord, modality: str, frame_numbers: Sequence[int]) -> Tensor:
        """uint8 (T, 3, H, W): the image, as often as frame 0 is asked for."""
        check_request(record, modality, frame_numbers, self.modalities)
        picture = torch.tensor(self.picture(record))  # a copy: the set's own memory may not be written to
        frame = picture.expand(3, *picture.shape) if picture.dim() == 2 else picture.permute(2, 0, 1)
        return frame.expand(len(frame_numbers), *frame.shape)


def image_record(part: str, name: str, *, label: int, class_name: str, size: tuple[int, int] = (0, 0)) -> ClipRecord:
    """The record of an image; (width, height) is (0, 0) where finding out would mean to open it."""
    video_id = f"{part}/{name}"
    return ClipRecord(video_id, video_id, class_name, label, 1, 0, 0.0, size[0], size[1], "")


def our_parts(names: Iterable[str]) -> dict[str, str]:
    """Our name for each part of a set. Where there is no `test`, what is called `val` is it (ImageNet).

    `val` beside `test` stays what it is: a part to choose settings by.
    """
    ours = {"train": "train", "training": "train", "trainval": "train", "test": "test", "testing": "test"}
    ours |= dict.fromkeys(("val", "valid", "validation"), "val")
    known = {name: ours[name] for name in names if name in ours}
    if "test" not in known.values():
        known = {name: "test" if part == "val" else part for name, part in known.items()}
    return known
