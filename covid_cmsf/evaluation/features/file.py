"""Features and probabilities files: safetensors with a JSON header about their content and the model behind it.

Features file, header `covid_cmsf_features` with `provenance`, `videos`, `skipped`:
    features    (N, D) per video: mean over its windows of the unit-length window features
    windows     (W, D) per window: the pooled output of the backbone
    window_videos, window_starts    (W,) index of the window's video, and its first frame
Probabilities file, header `covid_cmsf_probabilities` with `provenance`, `videos`:
    probabilities    (N, C) per test video, as a fine-tuned classifier predicts them

Format 2. Format 1 (version 0.1.0) differs in names only; `_upgrade_header` translates them.
"""

# N videos, W windows, D feature, C classes

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from covid_cmsf.clips.base import Clips
from covid_cmsf.config import Config, validate
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.subsets import VideoTable, video_table_from_json
from covid_cmsf.files import atomic_path


def clips_sha256(clips: Clips) -> str:
    """Hash the records (with the hashes of the original videos) and, for clip stores, how they were made."""
    info = getattr(clips, "info", None)
    store_info = info.model_dump(mode="json", exclude={"software"}) if info is not None else {}
    records = [asdict(record) for record in clips.records]
    return compute_fingerprint(
        {"clips": records, "modalities": clips.modalities, "bound": clips.flow_bound, "made": store_info}
    )


def compute_fingerprint(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a mapping's JSON text, keys sorted."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


FEATURES_FORMAT = 2
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
    header = {
        "provenance": features.provenance.model_dump(mode="json"),
        "videos": features.videos.to_json(),
        "skipped": features.skipped,
    }
    tensors = {name: getattr(features, name).contiguous() for name in FEATURES_TENSORS}
    with atomic_path(Path(path)) as temporary:
        temporary.write_bytes(save(tensors, metadata={FEATURES_HEADER: json.dumps(header)}))


def load_features(path: Path | str) -> Features:
    """Read a features file; ValueError if it is another file, damaged, or inconsistent.

    Example:
        >>> features = cc.load_features("rgb.safetensors")
        >>> len(features.videos) == len(features.features)
        True
    """
    path = Path(path)
    tensors, header = read_tensor_file(path, FEATURES_HEADER, file_kind="a features file", made_by="covid-cmsf extract")
    number = header.get("provenance", {}).get("format")
    if number != FEATURES_FORMAT:
        raise ValueError(f"{path} has format {number!r}; this version reads format {FEATURES_FORMAT}")
    if missing := [name for name in FEATURES_TENSORS if name not in tensors]:
        raise ValueError(f"{path}: missing tensors {', '.join(missing)}")
    features = Features(
        videos=video_table_from_json(header.get("videos", {}), location=str(path)),
        provenance=validate(Provenance, header["provenance"], origin=str(path)),
        skipped=tuple((str(a), str(b), str(c)) for a, b, c in header.get("skipped", [])),
        **{name: tensors[name] for name in FEATURES_TENSORS},
    )
    _check_features(features, path)
    return features


def read_tensor_file(path: Path, key: str, *, file_kind: str, made_by: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and JSON header of a safetensors file; ValueError if the header `key` is missing or damaged."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; give {file_kind}, as `{made_by}` writes it")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; `{made_by}` writes {file_kind}")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(key)
            tensors = {name: file.get_tensor(name) for name in file.keys()} if header else {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not {file_kind}, or it is truncated ({error}); `{made_by}` writes it again"
        ) from None
    if header is None:
        raise ValueError(f"{path} is a safetensors file, but not {file_kind}; `{made_by}` writes one")
    try:
        values = json.loads(header)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: the header is damaged ({error})") from None
    values = _upgrade_header(values) if isinstance(values, dict) and "about" in values else values
    if not isinstance(values, dict) or not isinstance(values.get("provenance"), dict):
        raise ValueError(f"{path}: the header is damaged (no `provenance` in it)")
    return tensors, values


OLD_NAMES = {  # format 1 -> format 2, of headers of features and probabilities, by the mapping that has them
    "header": {"about": "provenance", "set_aside": "skipped"},
    "provenance": {"part": "branch", "showing": "eval_protocol", "recipe": "config"},
    "eval_protocol": {"protocol": "name"},
    "config": {"backbone_factor": "backbone_lr_factor", "drops": "milestones", "val_share": "val_fraction"},
    "videos": {"parts": "subsets"},
}


def _upgrade_header(old: dict[str, Any]) -> dict[str, Any]:
    """Translate a header of format 1 to the names of format 2; other names stay."""

    def rename(values: Any, mapping: str) -> Any:
        if not isinstance(values, dict):
            return values
        translation = OLD_NAMES.get(mapping, {})
        new_names = {str(key): translation.get(str(key), str(key)) for key in values}
        return {new_names[key]: rename(value, new_names[key]) for key, value in values.items()}

    header: dict[str, Any] = rename(old, "header")
    if isinstance(header["provenance"], dict) and header["provenance"].get("format") == 1:
        header["provenance"]["format"] = 2
    return header


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


PROBABILITIES_FORMAT = 2
PROBABILITIES_HEADER = "covid_cmsf_probabilities"


@dataclass(frozen=True)
class Probabilities:
    """Class probabilities per video. `provenance` describes the classifier: protocol, encoder, weights, config."""

    videos: VideoTable
    probabilities: Tensor  # (N, C)
    provenance: dict[str, Any]


def save_probabilities(path: Path, values: Probabilities) -> None:
    """Write a probabilities file."""
    header = {"provenance": {"format": PROBABILITIES_FORMAT, **values.provenance}, "videos": values.videos.to_json()}
    tensors = {"probabilities": values.probabilities.contiguous()}
    with atomic_path(Path(path)) as temporary:
        temporary.write_bytes(save(tensors, metadata={PROBABILITIES_HEADER: json.dumps(header)}))


def holds_probabilities(path: Path | str) -> bool:
    """Whether `path` is a probabilities file; False for any other file, readable or not."""
    try:
        with safe_open(path, framework="pt") as file:
            return PROBABILITIES_HEADER in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def load_probabilities(path: Path | str) -> Probabilities:
    """Read a probabilities file; ValueError if it is another file, damaged, or inconsistent."""
    path = Path(path)
    file_kind = "a probabilities file"
    tensors, header = read_tensor_file(
        path, PROBABILITIES_HEADER, file_kind=file_kind, made_by="covid-cmsf evaluate finetune"
    )
    if header["provenance"].get("format") != PROBABILITIES_FORMAT:
        raise ValueError(f"{path} has format {header['provenance'].get('format')!r}; expected {PROBABILITIES_FORMAT}")
    videos = video_table_from_json(header.get("videos", {}), location=str(path))
    values = tensors.get("probabilities", torch.zeros(0))
    if tuple(values.shape) != (len(videos), len(videos.class_names)):
        raise ValueError(f"{path}: probabilities {tuple(values.shape)} for {len(videos)} videos")
    if not torch.isfinite(values).all():
        raise ValueError(f"{path}: some probabilities are not finite")
    return Probabilities(videos, values, header["provenance"])
