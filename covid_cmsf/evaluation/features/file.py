"""Fingerprints: of a collection of clips, of settings. What has the same one is the same."""

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
    """Over the manifest (with the hashes of the original videos) and, of our own stores, how they were made."""
    info = getattr(clips, "info", None)
    store_info = info.model_dump(mode="json", exclude={"software"}) if info is not None else {}
    records = [asdict(record) for record in clips.records]
    return compute_fingerprint(
        {"clips": records, "modalities": clips.modalities, "bound": clips.flow_bound, "made": store_info}
    )


def compute_fingerprint(values: Mapping[str, Any]) -> str:
    """SHA-256 of a mapping's JSON text, keys sorted."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


# The features file: one safetensors file that says what it holds and which model it came from.
#
# features    (N, D) a row a video: the mean over its windows of the pooled feature, scaled to unit length before
# windows     (W, D) a row a window: the pooled feature as the backbone gives it
# window_videos, window_starts    (W,) the row of its video, its first frame
# header      `covid_cmsf_features`: JSON with `provenance`, `videos`, `skipped`
#
# Format 2. Format 1 (version 0.1.0) differs in names only; `_upgrade_header` translates them.

# N videos, W windows, D feature


FEATURES_FORMAT = 2
FEATURES_HEADER = "covid_cmsf_features"
FEATURES_TENSORS = ("features", "windows", "window_videos", "window_starts")


class Provenance(Config):
    """Where features come from. Two files with the same `fingerprint` hold the same features."""

    format: int = FEATURES_FORMAT
    fingerprint: str  # of everything that decides the values
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
    """What `extract` wrote. `skipped` lists the videos of the split that have no row: id, subset and reason.

    Example:
        >>> features = cc.load_features("rgb.safetensors")
        >>> is_train = torch.tensor([subset == "train" for subset in features.videos.subsets])
        >>> train, labels = features.features[is_train], features.videos.labels[is_train]
    """

    videos: VideoTable
    features: Tensor
    windows: Tensor
    window_videos: Tensor
    window_starts: Tensor
    provenance: Provenance
    skipped: tuple[tuple[str, str, str], ...] = ()

    @property
    def protocol(self) -> str:
        """clean or coclr."""
        return self.provenance.eval_protocol.name

    def summary(self) -> dict[str, Any]:
        """What a result says about the features behind it."""
        provenance = self.provenance.model_dump(mode="json")
        return {**provenance, "num_videos": len(self.videos), "num_skipped": len(self.skipped)}


def save_features(path: Path | str, features: Features) -> None:
    """Write the file; the same features give the same bytes.

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
    """Return what `extract_features` wrote; ValueError if the file is damaged or something else.

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
        raise ValueError(f"{path} misses {', '.join(missing)}")
    features = Features(
        videos=video_table_from_json(header.get("videos", {}), location=str(path)),
        provenance=validate(Provenance, header["provenance"], origin=str(path)),
        skipped=tuple((str(a), str(b), str(c)) for a, b, c in header.get("skipped", [])),
        **{name: tensors[name] for name in FEATURES_TENSORS},
    )
    _check_features(features, path)
    return features


def read_tensor_file(path: Path, key: str, *, file_kind: str, made_by: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and JSON header of one of our safetensors files; ValueError when it is something else or damaged."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; give {file_kind}, as `{made_by}` writes it")
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; `{made_by}` writes {file_kind}")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(key)
            tensors = {name: file.get_tensor(name) for name in file.keys()} if header else {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not {file_kind}, or it is truncated ({error}); `{made_by}` writes it anew"
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


OLD_NAMES = {  # format 1 -> format 2, of headers of features and probabilities, by the mapping they stand in
    "header": {"about": "provenance", "set_aside": "skipped"},
    "provenance": {"part": "branch", "showing": "eval_protocol", "recipe": "config"},
    "eval_protocol": {"protocol": "name"},
    "config": {"backbone_factor": "backbone_lr_factor", "drops": "milestones", "val_share": "val_fraction"},
    "videos": {"parts": "subsets"},
}


def _upgrade_header(old: dict[str, Any]) -> dict[str, Any]:
    """A header of format 1 in the names of format 2; whatever is not translated here stays as it is."""

    def rename(values: Any, mapping: str) -> Any:
        if not isinstance(values, dict):
            return values
        names: dict[str, str] = {**{key: key for key in values}, **OLD_NAMES.get(mapping, {})}
        return {names[key]: rename(value, names[key]) for key, value in values.items()}

    header: dict[str, Any] = rename(old, "header")
    if isinstance(header["provenance"], dict) and header["provenance"].get("format") == 1:
        header["provenance"]["format"] = 2
    return header


def _check_features(features: Features, path: Path) -> None:
    rows, windows = features.features, features.windows
    if rows.dim() != 2 or windows.dim() != 2 or rows.shape[1] != windows.shape[1]:
        raise ValueError(f"{path}: features {tuple(rows.shape)} and windows {tuple(windows.shape)} do not fit")
    if len(rows) != len(features.videos):
        raise ValueError(f"{path}: {len(rows)} rows for {len(features.videos)} videos")
    if not len(windows) == len(features.window_videos) == len(features.window_starts):
        raise ValueError(f"{path}: {len(windows)} windows, {len(features.window_videos)} of which say their video")
    nonfinite = (~torch.isfinite(rows)).any(1).nonzero().flatten().tolist()
    if nonfinite:
        raise ValueError(
            f"{path}: the features of {len(nonfinite)} videos are not finite: {features.videos.ids[nonfinite[0]]!r}"
        )


# The probabilities file: what a trained classifier says about each test video, for fusion and for looking closer.

# N videos, C classes


PROBABILITIES_FORMAT = 2
PROBABILITIES_HEADER = "covid_cmsf_probabilities"


@dataclass(frozen=True)
class Probabilities:
    """One row a video. `provenance` says which classifier: protocol, encoder, origin, weights, config."""

    videos: VideoTable
    probabilities: Tensor  # (N, C)
    provenance: dict[str, Any]


def save_probabilities(path: Path, values: Probabilities) -> None:
    """Writes the file."""
    header = {"provenance": {"format": PROBABILITIES_FORMAT, **values.provenance}, "videos": values.videos.to_json()}
    tensors = {"probabilities": values.probabilities.contiguous()}
    with atomic_path(Path(path)) as temporary:
        temporary.write_bytes(save(tensors, metadata={PROBABILITIES_HEADER: json.dumps(header)}))


def holds_probabilities(path: Path | str) -> bool:
    """Whether this is a probabilities file; False for everything else, readable or not."""
    try:
        with safe_open(path, framework="pt") as file:
            return PROBABILITIES_HEADER in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def load_probabilities(path: Path | str) -> Probabilities:
    """Reads the file; ValueError when it is another kind, damaged, or does not hold together."""
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
