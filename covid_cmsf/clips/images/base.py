"""What all sets of images share: one frame each, subsets `train` and `test`, ids that begin with the subset."""

# T frames, H W pixels

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.clips.base import Clips, check_request
from covid_cmsf.clips.records import ClipRecord

SPLIT = "1"


class Images(Clips):
    """Images as clips of one frame. Every image is its own source."""

    modalities = ("rgb",)
    is_image = True
    flow_bound = 20.0

    def __init__(self, records: list[ClipRecord]) -> None:
        self.filter_(records)

    def filter_(self, records: list[ClipRecord]) -> None:
        """Only these images are there from now on."""
        self.records = records
        self.splits = {SPLIT: {record.video_id: record.video_id.split("/")[0] for record in records}}

    @abstractmethod
    def load_image(self, record: ClipRecord) -> NDArray[np.uint8]:
        """(H, W, 3) or, gray, (H, W); ValueError or OSError when it cannot be read."""

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """uint8 (T, 3, H, W): the image, as often as frame 0 is asked for."""
        check_request(record, modality, frame_indices, self.modalities)
        image = torch.tensor(self.load_image(record))  # a copy: the set's own memory may not be written to
        frame = image.expand(3, *image.shape) if image.dim() == 2 else image.permute(2, 0, 1)
        return frame.expand(len(frame_indices), *frame.shape)


def image_record(subset: str, name: str, *, label: int, class_name: str, size: tuple[int, int] = (0, 0)) -> ClipRecord:
    """The record of an image; (width, height) is (0, 0) where finding out would mean to open it."""
    video_id = f"{subset}/{name}"
    return ClipRecord(video_id, video_id, class_name, label, 1, 0, 0.0, size[0], size[1], "")


def standard_subset_names(names: Iterable[str]) -> dict[str, str]:
    """Our name for each subset of a set. Where there is no `test`, what is called `val` is it (ImageNet).

    `val` beside `test` stays what it is: a subset to choose settings by.
    """
    standard = {"train": "train", "training": "train", "trainval": "train", "test": "test", "testing": "test"}
    standard |= dict.fromkeys(("val", "valid", "validation"), "val")
    names_found = {name: standard[name] for name in names if name in standard}
    if "test" not in names_found.values():
        names_found = {name: "test" if subset == "val" else subset for name, subset in names_found.items()}
    return names_found
