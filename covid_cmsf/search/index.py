"""A search index: the windows of all videos as unit vectors, one set per modality, in a folder of plain files.

    index.json            format, and per modality the weights and the evaluation protocol behind its vectors
    videos.csv            one row per video: id, source, class, number of frames, frames per second
    rgb.safetensors, ...  one file per modality: vectors (W, D), mean (D,), videos (W,), starts (W,)

A window is `span` frames from its start. Vectors are centered by the mean of all windows of the index and have unit
length, so a dot product is the centered cosine similarity that the evaluation uses.
"""

# N videos, W windows, D feature

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.sampling import clip_span
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.files import file_sha256, read_text, write_text_atomic
from covid_cmsf.verified_files import read_tensors, write_tensors

FORMAT = 1
INDEX_FILE, VIDEOS_FILE = "index.json", "videos.csv"
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

    def of_video(self, video: int) -> slice:
        """Return the rows of a video; an empty slice if it has no window."""
        bounds = torch.searchsorted(self.videos, torch.tensor([video, video + 1]))
        return slice(int(bounds[0]), int(bounds[1]))


@dataclass(frozen=True)
class SearchIndex:
    """Videos and their windows per modality."""

    videos: tuple[IndexedVideo, ...]
    windows: dict[str, WindowSet]

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


def build_index(features: Mapping[str, Features], clips: Clips | None = None) -> SearchIndex:
    """Build an index from features files, one per modality; videos of any of them are in it.

    `clips` adds what features files do not have: number of frames and frame rate, so that times are in seconds.
    """
    if not features:
        raise ValueError("an index needs the features of at least one modality")
    rows: dict[str, IndexedVideo] = {}
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
    return SearchIndex(videos, {name: _window_set(one, number_of) for name, one in sorted(features.items())})


def _window_set(features: Features, number_of: Mapping[str, int]) -> WindowSet:
    numbers = torch.tensor([number_of[video_id] for video_id in features.videos.ids], dtype=torch.int64)
    videos, starts = numbers[features.window_videos], features.window_starts
    order = torch.argsort(videos * (int(starts.max()) + 1) + starts, stable=True) if len(starts) else starts
    unit = F.normalize(features.windows[order].float(), dim=1)
    mean = unit.double().mean(0).float()
    protocol = features.provenance.eval_protocol
    return WindowSet(
        vectors=F.normalize(unit.sub_(mean), dim=1),
        mean=mean,
        videos=videos[order],
        starts=starts[order],
        span=clip_span(protocol.length, protocol.stride),
        provenance=features.provenance.model_dump(mode="json"),
    )


def save_index(folder: Path | str, index: SearchIndex) -> None:
    """Write an index; `index.json` comes last, so an interrupted one is not taken for complete."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX_FILE).unlink(missing_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(IndexedVideo)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(video) for video in index.videos)
    write_text_atomic(folder / VIDEOS_FILE, text.getvalue())
    modalities = {}
    for name, windows in index.windows.items():
        tensors = {key: getattr(windows, key).contiguous() for key in ("vectors", "mean", "videos", "starts")}
        write_tensors(folder / f"{name}.safetensors", tensors, metadata={})
        modalities[name] = {
            "span": windows.span,
            "sha256": file_sha256(folder / f"{name}.safetensors"),
            "provenance": windows.provenance,
        }
    content = {"format": FORMAT, "videos_sha256": file_sha256(folder / VIDEOS_FILE), "modalities": modalities}
    write_text_atomic(folder / INDEX_FILE, json.dumps(content, indent=1))


def load_index(folder: Path | str) -> SearchIndex:
    """Read an index; ValueError if it is incomplete, damaged, or its files do not belong together."""
    folder = Path(folder)
    if not (folder / INDEX_FILE).is_file():
        raise FileNotFoundError(f"{folder} has no {INDEX_FILE}: it is no search index; {HINT}")
    try:
        content = json.loads(read_text(folder / INDEX_FILE))
        number, modalities = content["format"], dict(content["modalities"])
        expected = content["videos_sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / INDEX_FILE} is damaged ({error}); {HINT}") from None
    if number != FORMAT:
        raise ValueError(f"{folder} has format {number!r}; this version reads format {FORMAT}")
    if not (folder / VIDEOS_FILE).is_file() or file_sha256(folder / VIDEOS_FILE) != expected:
        raise ValueError(f"{folder / VIDEOS_FILE} is missing or was changed; {HINT}")
    with (folder / VIDEOS_FILE).open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        videos = tuple(
            IndexedVideo(**{**row, "num_frames": int(row["num_frames"]), "fps": float(row["fps"])})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        )
    return SearchIndex(videos, {name: _load_windows(folder, name, one) for name, one in modalities.items()})


def _load_windows(folder: Path, name: str, values: Mapping[str, Any]) -> WindowSet:
    path = folder / f"{name}.safetensors"
    if not name.isidentifier() or not path.is_file():
        raise ValueError(f"{folder}: the windows of {name!r} are missing; {HINT}")
    tensors, _ = read_tensors(path, hint=HINT)
    if file_sha256(path) != values["sha256"]:
        raise ValueError(f"{path} belongs to another index; {HINT}")
    return WindowSet(span=int(values["span"]), provenance=dict(values["provenance"]), **tensors)


def modality_weights(index: SearchIndex, modality: str) -> dict[str, float]:
    """Return {modality: weight} of `rgb`, `flow`, ..., or of `fused`: all that the index has, equally."""
    if modality == "fused":
        return dict.fromkeys(index.windows, 1.0 / len(index.windows))
    if modality not in index.windows:
        accepted: Sequence[str] = [*index.windows, "fused"]
        raise ValueError(f"this index has no {modality!r}; choose from {', '.join(accepted)}")
    return {modality: 1.0}
