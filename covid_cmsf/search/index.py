"""A search index: the windows of all videos as unit vectors, one set per modality, in a folder of plain files.

    index.json            format, weights of the fusion, and per modality what computed its vectors
    videos.csv            one row per video: id, source, class, number of frames, frames per second
    rgb.safetensors, ...  one file per modality: vectors (W, D), mean (D,), videos (W,), starts (W,)
    rgb.encoder.safetensors, ...  the encoders, for queries by video files (see `encoders`)

A window is `span` frames from its start. Vectors are centered by the mean of all windows of the index and have unit
length, so a dot product is the centered cosine similarity that the evaluation uses. Every file is verified by its
SHA-256 when it is read. Format 1 had neither encoders nor weights; it is read as well.
"""

# N videos, W windows, D feature

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.names import check_video_ids
from covid_cmsf.clips.sampling import clip_span
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.files import file_sha256, json_sha256, read_json, write_text_atomic
from covid_cmsf.search.encoders import encoder_from_json
from covid_cmsf.search.encoders.base import IndexEncoder
from covid_cmsf.search.project import INDEX_FILE, index_folder
from covid_cmsf.search.weights import default_weights
from covid_cmsf.verified_files import read_tensors, write_tensors

FORMAT = 2
VIDEOS_FILE = "videos.csv"
NEW_FOLDER = ".new"  # files are complete there before they replace older ones
HINT = "`covid-cmsf search index` writes it again"


@dataclass(frozen=True)
class IndexedVideo:
    """One row of videos.csv. `fps` is 0 where it is unknown: then times are in frames."""

    video_id: str
    source: str
    class_name: str  # empty when unlabeled
    num_frames: int
    fps: float

    def seconds(self, frame: int) -> float:
        """Return the time of a frame in seconds; the frame's number if the frame rate is unknown."""
        return frame / self.fps if self.fps > 0 else float(frame)


@dataclass(frozen=True)
class WindowSet:
    """The windows of one modality, sorted by video, then by start."""

    vectors: Tensor  # (W, D) fp32, centered, unit length
    mean: Tensor  # (D,) fp32, subtracted from unit-length features before they were normalized again
    videos: Tensor  # (W,) int64, index of the video
    starts: Tensor  # (W,) int64, first frame
    span: int  # frames per window
    provenance: dict[str, Any]  # that of the features file

    def center(self, features: Tensor) -> Tensor:
        """Map features (Q, D) of an encoder to vectors that are comparable with these."""
        return F.normalize(F.normalize(features.double(), dim=1) - self.mean.double(), dim=1).float()

    def features(self) -> Tensor:
        """Return the unit-length features (W, D) before they were centered: the inverse of `center`, up to rounding.

        A feature is mean + t * vector for a t > 0, and has length 1.
        """
        mean, vectors = self.mean.double(), self.vectors.double()
        along = vectors @ mean
        t = (along.square() + 1 - mean.square().sum()).clamp_min(0).sqrt() - along
        return (mean + t[:, None] * vectors).float()

    def of_video(self, video: int) -> slice:
        """Return the rows of a video; an empty slice if it has no window."""
        bounds = torch.searchsorted(self.videos, torch.tensor([video, video + 1]))
        return slice(int(bounds[0]), int(bounds[1]))


@dataclass(frozen=True)
class SearchIndex:
    """Videos and their windows per modality.

    Example:
        >>> index = cc.load_index("index")
        >>> index.windows["rgb"].vectors.shape[0] == len(index.windows["rgb"].videos)
        True
    """

    videos: tuple[IndexedVideo, ...]
    windows: dict[str, WindowSet]
    weights: dict[str, float] = field(default_factory=dict)  # of the modalities in `fused`; empty: all the same
    clips_path: Path | None = None  # the clip store, or the folder of video files, that it was made from
    folder: Path | None = None  # that it was read from; its encoders are there

    def __post_init__(self) -> None:
        unknown = sorted(self.weights.keys() - self.windows.keys())
        if unknown:
            raise ValueError(f"a weight for {unknown[0]!r}; this index has {', '.join(self.windows)}")
        if self.weights and not (min(self.weights.values()) >= 0 and 0 < sum(self.weights.values()) < float("inf")):
            raise ValueError(f"weights {self.weights}: they must be 0 or more, and at least one above 0")

    def find(self, name: str) -> int:
        """Return the index of the video with this id, or of the only one whose id contains `name`."""
        exact = [number for number, video in enumerate(self.videos) if name == video.video_id]
        found = exact or [number for number, video in enumerate(self.videos) if name in video.video_id]
        if not found:
            raise ValueError(f"no video {name!r} in this index of {len(self.videos)} videos")
        if len(found) > 1:
            some = ", ".join(self.videos[number].video_id for number in found[:3])
            raise ValueError(f"{len(found)} videos have {name!r} in their id: {some} ...; give the whole id")
        return found[0]


def build_index(
    features: Mapping[str, Features], clips: Clips | None = None, *, weights: Mapping[str, float] | None = None
) -> SearchIndex:
    """Build an index from features files, one per modality; videos of any of them are in it.

    `clips` adds what features files do not have: number of frames and frame rate, so that times are in seconds.
    `weights` are those of the modalities in `fused`; default: `default_weights`.
    """
    if not features:
        raise ValueError("an index needs the features of at least one modality")
    path = Path(clips.address) if clips is not None and clips.address and Path(clips.address).is_dir() else None
    empty = SearchIndex((), {}, clips_path=path)
    chosen = default_weights(features) if weights is None else weights
    return replace(extend_index(empty, features, clips), weights=dict(chosen))


def extend_index(index: SearchIndex, features: Mapping[str, Features], clips: Clips | None = None) -> SearchIndex:
    """Return the index with the videos of some features added: what `build_index` of all at once gives.

    Since the mean of all windows is another one, the vectors of the older videos change as well.
    """
    rows = {video.video_id: video for video in index.videos}
    known = {record.video_id: record for record in clips.records} if clips is not None else {}
    for one in features.values():
        for video_id, source, label in zip(one.videos.ids, one.videos.sources, one.videos.labels.tolist(), strict=True):
            record = known.get(video_id)
            rows.setdefault(
                video_id,
                IndexedVideo(
                    video_id=video_id,
                    source=source,
                    class_name=one.videos.class_names[label] if label >= 0 else "",
                    num_frames=record.num_frames if record else 0,
                    fps=record.fps if record else 0.0,
                ),
            )
    videos = tuple(rows[video_id] for video_id in sorted(rows))
    number_of = {video.video_id: number for number, video in enumerate(videos)}
    numbers = torch.tensor([number_of[video.video_id] for video in index.videos], dtype=torch.int64)
    names = sorted({*index.windows, *features})
    windows = {name: _join(index.windows.get(name), numbers, features.get(name), number_of) for name in names}
    return replace(index, videos=videos, windows=windows)


def _join(old: WindowSet | None, numbers: Tensor, new: Features | None, number_of: Mapping[str, int]) -> WindowSet:
    """Join windows; `numbers` are the new ones of the old videos. All are centered by their common mean."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []  # unit-length features, videos, starts
    if old is not None:
        parts.append((old.features(), numbers[old.videos], old.starts))
        span, provenance = old.span, old.provenance
    if new is not None:
        added = torch.tensor([number_of[video_id] for video_id in new.videos.ids], dtype=torch.int64)
        unit = F.normalize(new.windows.float(), dim=1)
        parts.append((unit, added[new.window_videos], new.window_starts))
    if old is None:
        assert new is not None
        protocol = new.provenance.eval_protocol
        span, provenance = clip_span(protocol.length, protocol.stride), new.provenance.model_dump(mode="json")
    units, videos, starts = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    order = torch.argsort(videos * (int(starts.max()) + 1) + starts, stable=True) if len(starts) else starts
    units = units[order]
    mean = units.double().mean(0).float()
    return WindowSet(
        vectors=F.normalize(units.sub_(mean), dim=1),
        mean=mean,
        videos=videos[order],
        starts=starts[order],
        span=span,
        provenance=provenance,
    )


def save_index(folder: Path | str, index: SearchIndex, encoders: Mapping[str, IndexEncoder] | None = None) -> None:
    """Write an index with the encoders of its modalities; without them, video files can't be queries.

    All files are written before the first one of an older index is replaced, and `index.json` comes last, so an
    interrupted one is not taken for complete.
    """
    folder = Path(folder)
    new = folder / NEW_FOLDER
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(IndexedVideo)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(video) for video in index.videos)
    write_text_atomic(new / VIDEOS_FILE, text.getvalue())
    modalities = {}
    for name, windows in index.windows.items():
        tensors = {key: getattr(windows, key).contiguous() for key in ("vectors", "mean", "videos", "starts")}
        write_tensors(new / f"{name}.safetensors", tensors, metadata={})
        encoder = (encoders or {}).get(name)
        modalities[name] = {
            "span": windows.span,
            "sha256": file_sha256(new / f"{name}.safetensors"),
            "provenance": windows.provenance,
            "encoder": None if encoder is None else replace(encoder, name=name).to_json(new),
        }
    content = {
        "format": FORMAT,
        "videos_sha256": file_sha256(new / VIDEOS_FILE),
        "weights": index.weights,
        "clips_path": "" if index.clips_path is None else _relative(index.clips_path, folder),
        "modalities": modalities,
    }
    write_text_atomic(new / INDEX_FILE, json.dumps({**content, "content_sha256": json_sha256(content)}, indent=1))
    (folder / INDEX_FILE).unlink(missing_ok=True)
    for pattern in ("*.encoder.*", "*.faiss", "faiss.json"):  # they belong to the older vectors
        for old in folder.glob(pattern):
            old.unlink()
    for path in sorted(new.iterdir(), key=lambda path: path.name == INDEX_FILE):
        path.replace(folder / path.name)
    new.rmdir()


def load_index(folder: Path | str) -> SearchIndex:
    """Read the index of a folder or project; ValueError if it is damaged, or its files do not belong together.

    Example:
        >>> index = cc.load_index("index")
        >>> len(index.videos), list(index.windows)
        (24, ['rgb'])
    """
    folder = index_folder(folder)
    content = _read_description(folder)
    if not (folder / VIDEOS_FILE).is_file() or file_sha256(folder / VIDEOS_FILE) != content["videos_sha256"]:
        raise ValueError(f"{folder / VIDEOS_FILE} is missing or was changed since {INDEX_FILE} was written; {HINT}")
    with _readable(folder / VIDEOS_FILE):
        videos = _read_videos(folder / VIDEOS_FILE)
    with _readable(folder / INDEX_FILE):
        modalities = content["modalities"].items()
        return SearchIndex(
            videos,
            {name: _load_windows(folder, name, one, num_videos=len(videos)) for name, one in modalities},
            weights={name: float(value) for name, value in content.get("weights", {}).items()},
            clips_path=folder / content["clips_path"] if content.get("clips_path") else None,
            folder=folder,
        )


def load_encoders(folder: Path | str) -> dict[str, IndexEncoder]:
    """Return the encoders of an index, verified; modalities without one (format 1, or lost weights) are left out."""
    folder = index_folder(folder)
    modalities = _read_description(folder)["modalities"]
    with _readable(folder / INDEX_FILE):
        stored = {name: one["encoder"] for name, one in modalities.items() if one.get("encoder")}
        return {name: encoder_from_json(folder, name, values) for name, values in stored.items()}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what malformed values lead to in the block into a ValueError that names the file."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, csv.Error) as error:
        if isinstance(error, ValueError) and str(path.parent) in str(error):
            raise
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}); {HINT}") from None


def _read_videos(path: Path) -> tuple[IndexedVideo, ...]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = [
            IndexedVideo(**{**row, "num_frames": int(row["num_frames"]), "fps": float(row["fps"])})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        ]
    check_video_ids([row.video_id for row in rows], path)
    return tuple(rows)


def _read_description(folder: Path) -> dict[str, Any]:
    try:
        content = read_json(folder / INDEX_FILE)
        number, _, _ = content["format"], dict(content["modalities"]), content["videos_sha256"]
        stated = content.pop("content_sha256", None)  # older indexes have none
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / INDEX_FILE} is damaged ({error}); {HINT}") from None
    if stated is not None and stated != json_sha256(content):
        raise ValueError(f"{folder / INDEX_FILE} was changed since it was written; {HINT}")
    if number not in (1, FORMAT):
        raise ValueError(f"{folder / INDEX_FILE} has format {number!r}; this version reads formats 1 and {FORMAT}")
    return dict(content)


def _load_windows(folder: Path, name: str, values: Mapping[str, Any], *, num_videos: int) -> WindowSet:
    path = folder / f"{name}.safetensors"
    if not name.isidentifier() or not path.is_file():
        raise ValueError(f"{folder / INDEX_FILE}: the windows of {name!r} are missing; {HINT}")
    tensors, _ = read_tensors(path, hint=HINT)
    if file_sha256(path) != values["sha256"]:
        raise ValueError(f"{path} belongs to another index than {INDEX_FILE}; {HINT}")
    windows = WindowSet(span=int(values["span"]), provenance=dict(values["provenance"]), **tensors)
    _check_windows(windows, num_videos, path)
    return windows


def _check_windows(windows: WindowSet, num_videos: int, path: Path) -> None:
    """Raise ValueError if the tensors do not fit together, or name videos that the index does not have."""
    vectors, mean, videos, starts = windows.vectors, windows.mean, windows.videos, windows.starts
    fits = vectors.dim() == 2 and mean.shape == vectors.shape[1:] and videos.shape == starts.shape == vectors.shape[:1]
    if not fits or windows.span < 1 or {vectors.dtype, mean.dtype} != {torch.float32}:
        raise ValueError(f"{path}: its tensors are not those of windows; {HINT}")
    if {videos.dtype, starts.dtype} != {torch.int64} or (
        len(videos) and not 0 <= videos.min() <= videos.max() < num_videos
    ):
        raise ValueError(f"{path}: it has windows of videos that {VIDEOS_FILE} does not have; {HINT}")
    if (videos.diff() < 0).any() or not torch.isfinite(vectors).all():
        raise ValueError(f"{path}: its windows are not sorted by video, or not finite; {HINT}")


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix()


def modality_weights(index: SearchIndex, modality: str) -> dict[str, float]:
    """Return {modality: weight}, sum 1, of `rgb`, `flow`, ..., or of `fused`: by the index's weights, else equally."""
    if modality == "fused":
        weights = index.weights or dict.fromkeys(index.windows, 1.0)
        return {name: weight / sum(weights.values()) for name, weight in weights.items() if weight > 0}
    if modality not in index.windows:
        raise ValueError(f"this index has no {modality!r}; choose from {', '.join([*index.windows, 'fused'])}")
    return {modality: 1.0}
