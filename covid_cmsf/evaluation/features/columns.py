"""Tables as columns of tensors, so that a file of a million videos has a small header and is read in seconds.

A column of texts is three tensors, each different text stored once:
    NAME.codes    (N,) int32: which text
    NAME.bytes    (B,) uint8: all texts in UTF-8, one after the other; undecodable bytes of file names stay as they are
    NAME.ends     (T,) int64: where each text ends
"""

# N videos, T different texts, B bytes

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.evaluation.features.subsets import VideoTable, check_video_table

TEXT_COLUMNS = ("ids", "sources", "subsets")
Skipped = tuple[tuple[str, str, str], ...]  # id, subset, reason
SKIPPED_COLUMNS = ("skipped.ids", "skipped.subsets", "skipped.reasons")


def encode_texts(name: str, texts: Sequence[str]) -> dict[str, Tensor]:
    """Return the three tensors of a column of texts."""
    code_of = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    encoded = [text.encode("utf-8", "surrogateescape") for text in code_of]
    codes = np.fromiter((code_of[text] for text in texts), dtype=np.int32, count=len(texts))
    ends = np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)))
    data = np.frombuffer(b"".join(encoded), dtype=np.uint8).copy()  # a tensor's memory must be writable
    return {
        f"{name}.codes": torch.from_numpy(codes),
        f"{name}.bytes": torch.from_numpy(data),
        f"{name}.ends": torch.from_numpy(ends),
    }


def decode_texts(name: str, tensors: Mapping[str, Tensor], *, location: str) -> tuple[str, ...]:
    """Return the texts of a column; ValueError naming `location` if its tensors are missing or do not fit."""
    try:
        codes, ends = (tensors[f"{name}.{part}"].tolist() for part in ("codes", "ends"))
        data = tensors[f"{name}.bytes"].numpy().tobytes()
    except KeyError as error:
        raise ValueError(f"{location}: missing tensor {error}") from None
    starts = [0, *ends[:-1]]
    fits = all(start <= end for start, end in zip(starts, ends, strict=False)) and (ends or [0])[-1] == len(data)
    if not fits or (codes and not 0 <= min(codes) <= max(codes) < len(ends)):
        raise ValueError(f"{location}: the column {name} is damaged")
    texts = [data[start:end].decode("utf-8", "surrogateescape") for start, end in zip(starts, ends, strict=False)]
    return tuple(texts[code] for code in codes)


def encode_videos(videos: VideoTable) -> dict[str, Tensor]:
    """Return the columns of a table of videos; class names belong into the header."""
    columns = [encode_texts(f"videos.{name}", getattr(videos, name)) for name in TEXT_COLUMNS]
    tensors = {name: tensor for column in columns for name, tensor in column.items()}
    contents = torch.zeros_like(videos.labels) if videos.contents is None else videos.contents
    return {**tensors, "videos.labels": videos.labels, "videos.contents": contents}


def decode_videos(tensors: Mapping[str, Tensor], class_names: Sequence[str], *, location: str) -> VideoTable:
    """Return the table of videos; ValueError naming `location` if its columns are damaged or inconsistent."""
    if missing := [name for name in ("videos.labels", "videos.contents") if name not in tensors]:
        raise ValueError(f"{location}: missing tensor {missing[0]!r}")
    ids, sources, subsets = (decode_texts(f"videos.{name}", tensors, location=location) for name in TEXT_COLUMNS)
    videos = VideoTable(ids, sources, tensors["videos.labels"], subsets, tuple(class_names), tensors["videos.contents"])
    check_video_table(videos, location=location)
    return videos


def encode_skipped(skipped: Skipped) -> dict[str, Tensor]:
    """Return the columns of the videos without features."""
    columns = [encode_texts(name, [entry[i] for entry in skipped]) for i, name in enumerate(SKIPPED_COLUMNS)]
    return {name: tensor for column in columns for name, tensor in column.items()}


def decode_skipped(tensors: Mapping[str, Tensor], *, location: str) -> Skipped:
    """Return the videos without features."""
    columns = [decode_texts(name, tensors, location=location) for name in SKIPPED_COLUMNS]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"{location}: the columns of skipped videos differ in length")
    return tuple(zip(columns[0], columns[1], columns[2], strict=True))
