"""Images of a torchvision data set as clips of one frame, so that everything that reads clips reads them."""

# T frames (one), H W pixels

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from covid_cmsf.clips.interface import Clips, check_request
from covid_cmsf.clips.manifest import ClipRecord
from covid_cmsf.evaluation.transfer.datasets import SplitRule
from covid_cmsf.evaluation.transfer.splits import split_images
from covid_cmsf.hashes import file_sha256


class DatasetImages(Clips):
    """One record an image: `train/000012` is image 12 of the piece `train`. Its split is called "1".

    `pieces`: for each name something that gives (PIL image, label) by number. `labels`: the labels of each piece, known
    without reading pictures. `files`: where given, the picture of every number; its bytes are hashed, so that features
    of other pictures under the same name are noticed. Worker processes get a pickled copy.
    """

    still = True
    modalities = ("rgb",)
    flow_bound = 20.0  # of no use: there is no flow

    def __init__(
        self,
        pieces: Mapping[str, Any],
        labels: Mapping[str, Sequence[int]],
        class_names: Sequence[str],
        rule: SplitRule,
        *,
        seed: int = 0,
        files: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._pieces = dict(pieces)
        self.records = []
        for piece, numbers in labels.items():
            if len(numbers) != len(pieces[piece]):
                raise ValueError(f"{piece} has {len(pieces[piece])} images and {len(numbers)} labels")
            for index, label in enumerate(numbers):
                if not 0 <= label < len(class_names):
                    raise ValueError(
                        f"image {index} of {piece} has label {label}; there are {len(class_names)} classes"
                    )
                name = f"{piece}/{index:06d}"
                digest = file_sha256(Path(files[piece][index])) if files is not None else ""
                record = ClipRecord(name, name, str(class_names[label]), int(label), 1, 0, 0.0, 0, 0, digest)
                self.records.append(record)
        ids = [record.video_id for record in self.records]
        places = [image.split("/")[0] for image in ids]
        self.splits = {"1": split_images(ids, [record.label for record in self.records], places, rule, seed=seed)}

    def read_codes(self, record: ClipRecord, modality: str, frame_numbers: Sequence[int]) -> Tensor:
        """uint8 (T, 3, H, W): the image, as often as frame 0 is asked for. ValueError or OSError if it is damaged."""
        check_request(record, modality, frame_numbers, self.modalities)
        piece, number = record.video_id.split("/")
        try:
            picture = self._pieces[piece][int(number)][0].convert("RGB")
        except (SyntaxError, Image.DecompressionBombError) as error:  # what Pillow says of broken and of absurd files
            raise ValueError(f"{record.video_id}: {error}") from None
        codes = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]
        return codes.repeat(len(frame_numbers), 1, 1, 1) if len(frame_numbers) > 1 else codes

    def sizes(self) -> dict[str, int]:
        """How many images each part has."""
        parts = list(self.splits["1"].values())
        return {part: parts.count(part) for part in sorted(set(parts))}
