"""Images of a torchvision data set as clips of one frame, so that everything that reads clips reads them."""

# H W pixels

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from covid_cmsf.clips.images.images import SPLIT, Images, image_record
from covid_cmsf.clips.manifest import ClipRecord
from covid_cmsf.evaluation.transfer.datasets import SplitRule
from covid_cmsf.evaluation.transfer.splits import split_images
from covid_cmsf.hashes import file_sha256


class DatasetImages(Images):
    """One record an image: `train/000012` is image 12 of the piece `train`. Its split is called "1".

    `pieces`: for each name something that gives (PIL image, label) by number. `labels`: the labels of each piece, known
    without reading pictures. `files`: where given, the picture of every number; its bytes are hashed, so that features
    of other pictures under the same name are noticed. Worker processes get a pickled copy.
    """

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
        records = []
        for piece, numbers in labels.items():
            if len(numbers) != len(pieces[piece]):
                raise ValueError(f"{piece} has {len(pieces[piece])} images and {len(numbers)} labels")
            for index, label in enumerate(numbers):
                if not 0 <= label < len(class_names):
                    raise ValueError(
                        f"image {index} of {piece} has label {label}; there are {len(class_names)} classes"
                    )
                record = image_record(piece, f"{index:06d}", label=int(label), class_name=str(class_names[label]))
                digest = file_sha256(Path(files[piece][index])) if files is not None else ""
                records.append(replace(record, source_sha256=digest))
        super().__init__(records)
        ids = [record.video_id for record in records]
        places = [image.split("/")[0] for image in ids]
        self.splits = {SPLIT: split_images(ids, [record.label for record in records], places, rule, seed=seed)}

    def picture(self, record: ClipRecord) -> NDArray[np.uint8]:
        """(H, W, 3). ValueError or OSError if it is damaged."""
        piece, number = record.video_id.split("/")
        try:
            return np.asarray(self._pieces[piece][int(number)][0].convert("RGB"))
        except (SyntaxError, Image.DecompressionBombError) as error:  # what Pillow says of broken and of absurd files
            raise ValueError(f"{record.video_id}: {error}") from None

    def sizes(self) -> dict[str, int]:
        """How many images each part has."""
        parts = list(self.splits[SPLIT].values())
        return {part: parts.count(part) for part in sorted(set(parts))}
