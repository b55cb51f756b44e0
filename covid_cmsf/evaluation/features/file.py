"""Features and probabilities files: safetensors with a JSON header about the model behind them, and a SHA-256.

Features file, header `covid_cmsf_features` with `provenance` and `class_names`:
    features    (N, D) per video: mean over its windows of the unit-length window features
    windows     (W, D) per window: the pooled output of the backbone
    window_videos, window_starts    (W,) index of the window's video, and its first frame
    videos.*, skipped.*    tables of the videos with and without features, as columns: see `columns.py`
Probabilities file, header `covid_cmsf_probabilities` with `provenance` and `class_names`:
    probabilities    (N, C) per test video, as a fine-tuned classifier predicts them
    videos.*

Format 3. Formats 1 (version 0.1.0) and 2 had the tables in the header, and no SHA-256; they are read: `old_formats.py`.
"""

# N videos, W windows, D feature, C classes

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import record_identity
from covid_cmsf.config import Config, validate
from covid_cmsf.evaluation.features.columns import decode_skipped, decode_videos, encode_skipped, encode_videos
from covid_cmsf.evaluation.features.old_formats import skipped_from_json, upgrade_header, video_table_from_json
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.verified_files import read_metadata, read_tensors, write_tensors


def clips_sha256(clips: Clips) -> str:
    """Hash the records (with the hashes of the original videos) and, for clip stores, how they were made."""
    info = getattr(clips, "info", None)
    later = {"levels", "size"} if info is not None and info.format == 1 else set()  # settings that format 1 had not
    store_info = info.model_dump(mode="json", exclude={"software": True, "flow": later}) if info is not None else {}
    records = hashlib.sha256()
    for record in clips.records:  # one by one: there may be a million
        records.update(json.dumps(record_identity(record)).encode() + b"\n")
    return compute_fingerprint(
        {
            "clips": records.hexdigest(),
            "modalities": clips.modalities,
            "bound": clips.flow_bound,
            "made": store_info,
        }
    )


def compute_fingerprint(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a mapping's JSON text, keys sorted."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


FEATURES_FORMAT = 3  # of both kinds of files
JSON_TABLES = 2  # the last format with tables in the header
FEATURES_HEADER = "covid_cmsf_features"
FEATURES_TENSORS = ("features", "windows", "window_videos", "window_starts")


class Provenance(Config):
    """Where features come from. Two files with the same `fingerprint` hold the same features."""

    format: int = FEATURES_FORMAT
    fingerprint: str  # of everything that the values depend on
    encoder: str
    origin: str  # name of the checkpoint, or how the encoder was made
    checkpoint_sha256: str  # of the file; empty for an encoder without one
    weights_sha256: str  # of the encoder's tensors
    branch: str  # online, target, ...
    eval_protocol: EvalProtocol
    store_sha256: str
    videos_sha256: str = ""  # fingerprint of the stored files; empty: unknown (format 2)
    checkpoint_path: str = ""  # relative to the features file's folder; empty: unknown, or none
    clips_path: str = ""
    split: str
    precision: str
    device: str
    batch_size: int
    software: str


@dataclass(frozen=True)
class Features:
    """Content of a features file. `skipped` lists videos of the split without features: id, subset, reason.

    Example:
        >>> features = cc.load_features("rgb.safetensors")
        >>> is_train = torch.tensor([subset == "train" for subset in features.videos.subsets])
        >>> train, labels = features.features[is_train], features.videos.labels[is_train]
    """

    videos: VideoTable
    features: Tensor  # (N, D)
    windows: Tensor  # (W, D)
    window_videos: Tensor  # (W,)
    window_starts: Tensor  # (W,)
    provenance: Provenance
    skipped: tuple[tuple[str, str, str], ...] = ()

    @property
    def protocol(self) -> str:
        """Name of the evaluation protocol: clean or coclr."""
        return self.provenance.eval_protocol.name

    def summary(self) -> dict[str, Any]:
        """Return the provenance that a result records about its features."""
        provenance = self.provenance.model_dump(mode="json")
        return {**provenance, "num_videos": len(self.videos), "num_skipped": len(self.skipped)}


def save_features(path: Path | str, features: Features) -> None:
    """Write a features file; equal features give equal bytes.

    Example:
        >>> cc.save_features("copy.safetensors", cc.load_features("rgb.safetensors"))
    """
    tensors = {name: getattr(features, name) for name in FEATURES_TENSORS}
    tensors |= encode_videos(features.videos) | encode_skipped(features.skipped)
    provenance = {**features.provenance.model_dump(mode="json"), "format": FEATURES_FORMAT}
    write_tensors(Path(path), tensors, metadata=_header(FEATURES_HEADER, provenance, features.videos))


def load_features(path: Path | str) -> Features:
    """Read a features file; ValueError if it is another file, damaged, or inconsistent.

    Example:
        >>> features = cc.load_features("rgb.safetensors")
        >>> len(features.videos) == len(features.features)
        True
    """
    path = Path(path)
    tensors, header = read_tensor_file(path, FEATURES_HEADER, file_kind="a features file", made_by="covid-cmsf extract")
    if missing := [name for name in FEATURES_TENSORS if name not in tensors]:
        raise ValueError(f"{path}: missing tensors {', '.join(missing)}")
    is_old = header["provenance"].get("format") == JSON_TABLES
    features = Features(
        videos=_read_videos(tensors, header, path),
        provenance=validate(Provenance, header["provenance"], origin=str(path)),
        skipped=skipped_from_json(header.get("skipped", []), location=str(path))
        if is_old
        else decode_skipped(tensors, location=str(path)),
        **{name: tensors[name] for name in FEATURES_TENSORS},
    )
    _check_features(features, path)
    return features


def _header(key: str, provenance: Mapping[str, Any], videos: VideoTable) -> dict[str, str]:
    return {key: json.dumps({"provenance": provenance, "class_names": videos.class_names})}


def _read_videos(tensors: Mapping[str, Tensor], header: Mapping[str, Any], path: Path) -> VideoTable:
    if header["provenance"].get("format") == JSON_TABLES:
        return video_table_from_json(header.get("videos", {}), location=str(path))
    return decode_videos(tensors, [str(name) for name in header.get("class_names", [])], location=str(path))


def read_tensor_file(path: Path, key: str, *, file_kind: str, made_by: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and JSON header of a safetensors file; ValueError if the header `key` is missing or damaged."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; give {file_kind}, as `{made_by}` writes it")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; `{made_by}` writes {file_kind}")
    tensors, metadata = read_tensors(path, hint=f"`{made_by}` writes {file_kind} again")
    if key not in metadata:
        raise ValueError(f"{path} is a safetensors file, but not {file_kind}; `{made_by}` writes one")
    try:
        values = json.loads(metadata[key])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: the header is damaged ({error})") from None
    values = upgrade_header(values) if isinstance(values, dict) and "about" in values else values
    if isinstance(values, dict) and not isinstance(values.get("class_names", []), list):
        raise ValueError(f"{path}: the header is damaged (`class_names` is no list)")
    if not isinstance(values, dict) or not isinstance(values.get("provenance"), dict):
        raise ValueError(f"{path}: the header is damaged (no `provenance` in it)")
    number = values["provenance"].get("format")
    if number not in (JSON_TABLES, FEATURES_FORMAT):
        raise ValueError(f"{path} has format {number!r}; this version reads formats 1 to {FEATURES_FORMAT}")
    return tensors, values


def _check_features(features: Features, path: Path) -> None:
    values, windows = features.features, features.windows
    if values.dim() != 2 or windows.dim() != 2 or values.shape[1] != windows.shape[1]:
        raise ValueError(f"{path}: features {tuple(values.shape)} and windows {tuple(windows.shape)} do not fit")
    if len(values) != len(features.videos):
        raise ValueError(f"{path}: {len(values)} features for {len(features.videos)} videos")
    if not len(windows) == len(features.window_videos) == len(features.window_starts):
        raise ValueError(
            f"{path}: {len(windows)} windows, but {len(features.window_videos)} video indices and "
            f"{len(features.window_starts)} starts"
        )
    nonfinite = (~torch.isfinite(values)).any(1).nonzero().flatten().tolist()
    if nonfinite:
        raise ValueError(
            f"{path}: the features of {len(nonfinite)} videos are not finite: {features.videos.ids[nonfinite[0]]!r}"
        )


PROBABILITIES_HEADER = "covid_cmsf_probabilities"


@dataclass(frozen=True)
class Probabilities:
    """Class probabilities per video. `provenance` describes the classifier: protocol, encoder, weights, config."""

    videos: VideoTable
    probabilities: Tensor  # (N, C)
    provenance: dict[str, Any]


def save_probabilities(path: Path, values: Probabilities) -> None:
    """Write a probabilities file."""
    tensors = {"probabilities": values.probabilities, **encode_videos(values.videos)}
    provenance = {**values.provenance, "format": FEATURES_FORMAT}
    write_tensors(Path(path), tensors, metadata=_header(PROBABILITIES_HEADER, provenance, values.videos))


def holds_probabilities(path: Path | str) -> bool:
    """Whether `path` is a probabilities file; False for any other file, readable or not."""
    return PROBABILITIES_HEADER in read_metadata(path)


def load_probabilities(path: Path | str) -> Probabilities:
    """Read a probabilities file; ValueError if it is another file, damaged, or inconsistent."""
    path = Path(path)
    file_kind = "a probabilities file"
    tensors, header = read_tensor_file(
        path, PROBABILITIES_HEADER, file_kind=file_kind, made_by="covid-cmsf evaluate finetune"
    )
    videos = _read_videos(tensors, header, path)
    values = tensors.get("probabilities", torch.zeros(0))
    if tuple(values.shape) != (len(videos), len(videos.class_names)):
        raise ValueError(f"{path}: probabilities {tuple(values.shape)} for {len(videos)} videos")
    if not torch.isfinite(values).all():
        raise ValueError(f"{path}: some probabilities are not finite")
    return Probabilities(videos, values, header["provenance"])
