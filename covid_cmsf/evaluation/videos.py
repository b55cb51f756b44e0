"""Who the rows of a features file are: ids, sources, labels, and the part of the split that each video is in."""

# N videos

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covid_cmsf.clips.manifest import ClipRecord

UNLABELED = -1


@dataclass(frozen=True)
class Videos:
    """One entry a row. `class_names[label]` is empty for a label that no video has."""

    ids: tuple[str, ...]
    sources: tuple[str, ...]
    labels: Tensor  # (N,) int64; -1 when unlabeled
    parts: tuple[str, ...]  # train, test, val
    class_names: tuple[str, ...]

    @classmethod
    def of(cls, records: Sequence[ClipRecord], parts: Sequence[str]) -> "Videos":
        """The table of these records."""
        names = {record.label: record.class_name for record in records if record.label != UNLABELED}
        return cls(
            ids=tuple(record.video_id for record in records),
            sources=tuple(record.source or record.video_id for record in records),
            labels=torch.tensor([record.label for record in records], dtype=torch.int64),
            parts=tuple(parts),
            class_names=tuple(names.get(label, "") for label in range(max(names, default=-1) + 1)),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Tensor) -> "Videos":
        """Some of the rows, in the given order; labels keep their meaning."""
        chosen = rows.tolist()
        return Videos(
            ids=tuple(self.ids[i] for i in chosen),
            sources=tuple(self.sources[i] for i in chosen),
            labels=self.labels[rows],
            parts=tuple(self.parts[i] for i in chosen),
            class_names=self.class_names,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain lists."""
        values = {key: list(getattr(self, key)) for key in ("ids", "sources", "parts", "class_names")}
        return {**values, "labels": self.labels.tolist()}


def read_videos(values: Mapping[str, Any], *, place: str) -> Videos:
    """The table from its JSON form; ValueError naming `place` when it does not hold together."""
    try:
        labels = torch.tensor(values["labels"], dtype=torch.int64).view(-1)
        texts = {key: tuple(map(str, values[key])) for key in ("ids", "sources", "parts", "class_names")}
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{place}: the table of videos is damaged ({error})") from None
    lengths = {key: len(texts[key]) for key in ("ids", "sources", "parts")} | {"labels": len(labels)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{place}: the columns of the table of videos differ in length: {lengths}")
    if len(set(texts["ids"])) != len(labels):
        raise ValueError(f"{place}: a video stands there twice")
    if len(labels) and not UNLABELED <= int(labels.min()) <= int(labels.max()) < max(1, len(texts["class_names"])):
        raise ValueError(f"{place}: labels must be -1 to {len(texts['class_names']) - 1}, one a class name")
    return Videos(labels=labels, **texts)
