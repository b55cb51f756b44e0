"""The base class of image sets: one frame per record, subsets `train` and `test`, ids that begin with the subset.

Shapes: T frames, H x W pixels.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.clips.base import Clips, check_request
from covid_cmsf.clips.records import ClipRecord

SPLIT = "1"
MAX_PIXELS = 89_478_485  # PIL's limit, above which it warns


class Images(Clips):
    """Images as clips of one frame. Every image is its own source."""

    modalities = ("rgb",)
    is_image = True
    flow_bound = 20.0

    def __init__(self, records: list[ClipRecord]) -> None:
        self.filter_(records)

    def filter_(self, records: Sequence[ClipRecord]) -> None:
        """Keep only these records, in place; the subset is the first component of the id."""
        self.records = records
        self.splits = {SPLIT: {record.video_id: record.video_id.split("/")[0] for record in records}}

    @abstractmethod
    def load_image(self, record: ClipRecord) -> NDArray[np.uint8]:
        """Return the image, (H, W, 3) or gray (H, W); ValueError or OSError if it can't be read."""

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """Return the image as uint8 (T, 3, H, W), repeated for every requested frame."""
        check_request(record, modality, frame_indices, self.modalities)
        image = torch.tensor(self.load_image(record))  # a copy: the caller may write to it
        frame = image.expand(3, *image.shape) if image.dim() == 2 else image.permute(2, 0, 1)
        return frame.expand(len(frame_indices), *frame.shape)


@contextmanager
def readable_image(name: object) -> Iterator[None]:
    """Turn whatever the decoder raises in the block into a ValueError with the image's name: the per-item boundary."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{name} is not a readable image: {error or type(error).__name__}") from error


def check_size(width: int, height: int) -> None:
    """Raise ValueError for an image that would need more than 270 MB: a small file can say any size."""
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width}x{height} pixels are more than {MAX_PIXELS}")


def image_record(subset: str, name: str, *, label: int, class_name: str, size: tuple[int, int] = (0, 0)) -> ClipRecord:
    """Return the record of an image; `size` is (width, height), (0, 0) if unknown without opening the file."""
    video_id = f"{subset}/{name}"
    return ClipRecord(video_id, video_id, class_name, label, 1, 0, 0.0, size[0], size[1], "")


def standard_subset_names(names: Iterable[str]) -> dict[str, str]:
    """Map a data set's subset names to train, val and test; unknown names are left out.

    A set without `test` uses its `val` as the test subset (ImageNet). With both, `val` stays the validation subset.
    """
    standard = {"train": "train", "training": "train", "trainval": "train", "test": "test", "testing": "test"}
    standard |= dict.fromkeys(("val", "valid", "validation"), "val")
    names_found = {name: standard[name] for name in names if name in standard}
    if "test" not in names_found.values():
        names_found = {name: "test" if subset == "val" else subset for name, subset in names_found.items()}
    return names_found
