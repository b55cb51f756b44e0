"""Video files outside of an index as queries: their windows as vectors that are comparable with those of the index.

    embed_file(index, "my.mp4", start=12.5, end=15)   # {"rgb": (Q, D), "flow": (Q, D)}, for `search.query.search`

A file is decoded and prepared as the videos of the index were: the same short edge, flow and windows.
"""

# Q query windows, D feature

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from covid_cmsf.clips.base import Clips, check_request
from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.clips.records import ClipRecord, FlowInfo, StoreInfo
from covid_cmsf.search.encoders.base import IndexEncoder
from covid_cmsf.search.index import SearchIndex, load_encoders, load_index, modality_weights
from covid_cmsf.search.project import index_folder
from covid_cmsf.video_files import VideoFiles


@dataclass(frozen=True)
class EmbeddedFile:
    """The windows of a video file, or of a part of it, per modality."""

    vectors: dict[str, Tensor]  # (Q, D), centered for the index
    starts: dict[str, Tensor]  # (Q,) first frames, in the whole file
    spans: dict[str, int]  # frames per window
    num_frames: int  # of the whole file
    fps: float


class FileEmbedder:
    """An index and its encoders, opened once for many files."""

    def __init__(
        self, folder: Path | str, index: SearchIndex | None = None, *, device: torch.device | str = "cpu"
    ) -> None:
        """Open the index of a folder or project.

        Args:
            folder: of the index, or of a project.
            index: the index, if it was loaded already.
            device: where the encoders run.
        """
        self.folder, self.device = index_folder(folder), device
        self.index = load_index(self.folder) if index is None else index
        self.encoders: dict[str, IndexEncoder] = load_encoders(self.folder)

    def check(self, modality: str = "fused") -> None:
        """Raise ValueError if the index has no encoder for a modality, so that files can't be compared by it."""
        missing = [name for name in modality_weights(self.index, modality) if name not in self.encoders]
        if missing:
            raise ValueError(
                f"{self.folder} has no encoder for {', '.join(missing)}, so only its own videos can be queries; "
                f"`covid-cmsf search index ... --weights WEIGHTS` writes an index with encoders"
            )

    def embed(
        self, file: Path | str, *, start: float | None = None, end: float | None = None, modality: str | None = None
    ) -> EmbeddedFile:
        """Embed a video file, or its part from `start` to `end` in seconds.

        A part shorter than a window is widened to one window around its middle.

        Args:
            file: a video file.
            start: where the part begins.
            end: where it ends.
            modality: only what this one needs; None: all modalities that have an encoder.
        """
        if modality is not None:
            self.check(modality)
        elif not self.encoders:
            self.check()
        names = list(self.encoders) if modality is None else list(modality_weights(self.index, modality))
        vectors, starts = {}, {}
        opened: dict[str, VideoFiles] = {}  # by settings: a file is opened once if all encoders take the same frames
        for name in names:
            encoder = self.encoders[name]
            key = encoder.frames.model_dump_json()
            if key not in opened:
                opened[key] = VideoFiles([file], encoder.frames)
            clips, record = opened[key], opened[key].records[0]
            first, last = _interval(record, Path(file), start, end, shortest=encoder.span)
            part = ClipPart(clips, record, first, last)
            outputs = encoder.embed(part, part.records, device=self.device)
            if outputs.errors:
                raise ValueError(f"{file}: {outputs.errors[0]}")
            vectors[name] = self.index.windows[name].center(outputs.windows)
            starts[name] = outputs.window_starts + first
        spans = {name: self.encoders[name].span for name in names}
        return EmbeddedFile(vectors, starts, spans, record.num_frames, record.fps)


def embed_file(
    index: Path | str, file: Path | str, *, start: float | None = None, end: float | None = None
) -> dict[str, Tensor]:
    """Return per modality the vectors (Q, D) of a video file's windows, centered for the index at a folder or project.

    `start` and `end` are seconds. For many files keep a `FileEmbedder`.
    """
    return FileEmbedder(index).embed(file, start=start, end=end).vectors


def query_pictures(file: Path) -> tuple[Clips, ClipRecord]:
    """Return a video file as clips at its own size, for pictures of it."""
    parameters = FlowInfo(backend="none", version="", parameters={}, bound=1.0)  # its flow is not needed
    info = StoreInfo(modalities=("rgb", "flow"), short_edge=0, max_frames=0, quality=0, flow=parameters)
    clips = VideoFiles([file], info)
    return clips, clips.records[0]


class ClipPart(Clips):
    """The frames [start, end) of one video as clips of their own."""

    def __init__(self, clips: Clips, record: ClipRecord, start: int, end: int) -> None:
        self._clips, self._record, self._start = clips, record, start
        self.info, self.modalities, self.flow_bound = clips.info, clips.modalities, clips.flow_bound
        self.num_flow_levels = clips.num_flow_levels
        num_flow = max(0, min(end - 1, record.num_flow) - start)
        self.records = [replace(record, num_frames=end - start, num_flow=num_flow)]
        self.splits = {}

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """Return stored frames; index 0 is the part's first frame."""
        check_request(record, modality, frame_indices, self.modalities)
        return self._clips.read_raw(self._record, modality, [self._start + number for number in frame_indices])

    def flow_levels(self, record: ClipRecord) -> FlowLevels:
        """Return how the flow of the whole video is quantized."""
        return self._clips.flow_levels(self._record)


def _interval(
    record: ClipRecord, file: Path, start: float | None, end: float | None, *, shortest: int
) -> tuple[int, int]:
    """Return the frames [first, last) of an interval in seconds, at least `shortest` if the video has so many."""
    if start is None and end is None:
        return 0, record.num_frames
    seconds = record.num_frames / record.fps
    low, high = 0.0 if start is None else start, seconds if end is None else min(end, seconds)
    if not 0 <= low < high:
        raise ValueError(
            f"{file} has {seconds:.2f} seconds; no frames from {low:g} to {high if end is None else end:g}"
        )
    first, last = round(low * record.fps), max(round(low * record.fps) + 1, round(high * record.fps))
    shortest = min(shortest + 1, record.num_frames)  # one more: flow has one frame less
    if last - first < shortest:
        first = min(max(0, (first + last - shortest) // 2), record.num_frames - shortest)
        last = first + shortest
    return first, min(last, record.num_frames)
