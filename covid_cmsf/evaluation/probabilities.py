"""The probabilities file: what a trained classifier says about each test video, for fusion and for looking closer."""

# N videos, C classes

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from covid_cmsf.atomic import atomic_path
from covid_cmsf.evaluation.features import read_table_file
from covid_cmsf.evaluation.videos import Videos, read_videos

FORMAT = 1
HEADER_KEY = "covid_cmsf_probabilities"


@dataclass(frozen=True)
class Probabilities:
    """One row a video. `about` says which classifier: protocol, encoder, origin, weights_sha256, showing, recipe."""

    videos: Videos
    probabilities: Tensor  # (N, C)
    about: dict[str, Any]


def save_probabilities(path: Path, values: Probabilities) -> None:
    """Writes the file."""
    header = {"about": {"format": FORMAT, **values.about}, "videos": values.videos.to_json()}
    tensors = {"probabilities": values.probabilities.contiguous()}
    with atomic_path(Path(path)) as temporary:
        temporary.write_bytes(save(tensors, metadata={HEADER_KEY: json.dumps(header)}))


def holds_probabilities(path: Path | str) -> bool:
    """Whether this is a probabilities file; False for everything else, readable or not."""
    try:
        with safe_open(path, framework="pt") as file:
            return HEADER_KEY in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def load_probabilities(path: Path | str) -> Probabilities:
    """Reads the file; ValueError when it is another kind, damaged, or does not hold together."""
    path = Path(path)
    what = "a probabilities file"
    tensors, header = read_table_file(path, HEADER_KEY, what=what, made_by="covid-cmsf evaluate finetune")
    if header["about"].get("format") != FORMAT:
        raise ValueError(f"{path} has format {header['about'].get('format')!r}; this version reads format {FORMAT}")
    videos = read_videos(header.get("videos", {}), place=str(path))
    values = tensors.get("probabilities", torch.zeros(0))
    if tuple(values.shape) != (len(videos), len(videos.class_names)):
        raise ValueError(f"{path}: probabilities {tuple(values.shape)} for {len(videos)} videos")
    if not torch.isfinite(values).all():
        raise ValueError(f"{path}: some probabilities are not finite")
    return Probabilities(videos, values, header["about"])
