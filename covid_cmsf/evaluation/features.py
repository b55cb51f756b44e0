"""The features file: one safetensors file that says what it holds and which model it came from.

features    (N, D) a row a video: the mean over its windows of the pooled feature, scaled to unit length before
windows     (W, D) a row a window: the pooled feature as the backbone gives it
window_videos, window_starts    (W,) the row of its video, its first frame
header      `covid_cmsf_features`: JSON with `about`, `videos`, `set_aside`
"""

# N videos, W windows, D feature

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from covid_cmsf.atomic import atomic_path
from covid_cmsf.config import Settings, validate
from covid_cmsf.evaluation.showing import Showing
from covid_cmsf.evaluation.videos import Videos, read_videos

FORMAT = 1
HEADER_KEY = "covid_cmsf_features"
TENSORS = ("features", "windows", "window_videos", "window_starts")


class About(Settings):
    """Where features come from. Two files with the same `fingerprint` hold the same features."""

    format: int = FORMAT
    fingerprint: str  # of everything that decides the values
    encoder: str
    origin: str  # name of the checkpoint, or how the encoder was made
    checkpoint_sha256: str  # of the file; empty for an encoder without one
    weights_sha256: str  # of the encoder's tensors
    part: str  # online, target, ...
    showing: Showing
    store_sha256: str
    split: str
    precision: str
    device: str
    batch_size: int
    software: str


@dataclass(frozen=True)
class Features:
    """What `extract` wrote. `set_aside` lists the videos of the split that have no row: id, part and reason."""

    videos: Videos
    features: Tensor
    windows: Tensor
    window_videos: Tensor
    window_starts: Tensor
    about: About
    set_aside: tuple[tuple[str, str, str], ...] = ()

    @property
    def protocol(self) -> str:
        """clean or coclr."""
        return self.about.showing.protocol

    def summary(self) -> dict[str, Any]:
        """What a result says about the features behind it."""
        about = self.about.model_dump(mode="json")
        return {**about, "num_videos": len(self.videos), "num_set_aside": len(self.set_aside)}


def save_features(path: Path, features: Features) -> None:
    """Writes the file; the same features give the same bytes."""
    header = {
        "about": features.about.model_dump(mode="json"),
        "videos": features.videos.to_json(),
        "set_aside": features.set_aside,
    }
    tensors = {name: getattr(features, name).contiguous() for name in TENSORS}
    with atomic_path(Path(path)) as temporary:
        temporary.write_bytes(save(tensors, metadata={HEADER_KEY: json.dumps(header)}))


def load_features(path: Path | str) -> Features:
    """Reads the file; every way in which it can be wrong is a ValueError that names it."""
    path = Path(path)
    tensors, header = read_table_file(path, HEADER_KEY, what="a features file", made_by="covid-cmsf extract")
    number = header.get("about", {}).get("format")
    if number != FORMAT:
        raise ValueError(f"{path} has format {number!r}; this version reads format {FORMAT}")
    if missing := [name for name in TENSORS if name not in tensors]:
        raise ValueError(f"{path} misses {', '.join(missing)}")
    features = Features(
        videos=read_videos(header.get("videos", {}), place=str(path)),
        about=validate(About, header["about"], place=str(path)),
        set_aside=tuple((str(a), str(b), str(c)) for a, b, c in header.get("set_aside", [])),
        **{name: tensors[name] for name in TENSORS},
    )
    _check(features, path)
    return features


def read_table_file(path: Path, key: str, *, what: str, made_by: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and JSON header of one of our safetensors files; ValueError when it is something else or damaged."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; give {what}, as `{made_by}` writes it")
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; `{made_by}` writes {what}")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(key)
            tensors = {name: file.get_tensor(name) for name in file.keys()} if header else {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not {what}, or it is truncated ({error}); `{made_by}` writes it anew") from None
    if header is None:
        raise ValueError(f"{path} is a safetensors file, but not {what}; `{made_by}` writes one")
    try:
        values = json.loads(header)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: the header is damaged ({error})") from None
    if not isinstance(values, dict) or not isinstance(values.get("about"), dict):
        raise ValueError(f"{path}: the header is damaged (no `about` in it)")
    return tensors, values


def _check(features: Features, path: Path) -> None:
    rows, windows = features.features, features.windows
    if rows.dim() != 2 or windows.dim() != 2 or rows.shape[1] != windows.shape[1]:
        raise ValueError(f"{path}: features {tuple(rows.shape)} and windows {tuple(windows.shape)} do not fit")
    if len(rows) != len(features.videos):
        raise ValueError(f"{path}: {len(rows)} rows for {len(features.videos)} videos")
    if not len(windows) == len(features.window_videos) == len(features.window_starts):
        raise ValueError(f"{path}: {len(windows)} windows, {len(features.window_videos)} of which say their video")
    bad = (~torch.isfinite(rows)).any(1).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"{path}: the features of {len(bad)} videos are not finite, for example of {features.videos.ids[bad[0]]!r}"
        )
