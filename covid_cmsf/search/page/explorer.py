"""What the server of the page knows and computes, apart from HTTP; everything when it is first asked for."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.pages.data_scripts import data_script
from covid_cmsf.pages.thumbnails import Style, thumbnail
from covid_cmsf.search.files import FileEmbedder
from covid_cmsf.search.index import load_encoders, load_index
from covid_cmsf.search.page.copies import find_copies, read_copies
from covid_cmsf.search.page.data import cluster_values, duplicate_values, map_values, probe_values, video_values
from covid_cmsf.search.page.neighbors import TOP, choices, find_neighbors, leading_modality
from covid_cmsf.search.page.saved import (
    DECISIONS,
    MAX_NAME,
    is_text,
    read_decisions,
    read_labels,
    write_decisions,
    write_labels,
)
from covid_cmsf.search.page.write import KINDS, page_values
from covid_cmsf.search.project import clips_folder, index_folder
from covid_cmsf.search.query import rows_between
from covid_cmsf.video_files import VideoFiles

PREVIEW = Style(120, 12, 55)
PREVIEWS = 4000  # kept in memory, about 10 kB each
UPLOADS = 8  # files whose vectors are kept
Data = dict[str, Any]


@dataclass(frozen=True)
class Upload:
    """A file that was dropped on the page: its vectors and pictures; the file itself is gone."""

    name: str
    vectors: dict[str, Tensor]
    starts: dict[str, Tensor]  # first frames of its windows
    fps: float
    num_frames: int
    pictures: dict[str, bytes]  # rgb, flow


class Explorer:
    """An index, its clips, and what users decide about them."""

    def __init__(self, path: Path | str, clips: Path | str | None = None, *, max_upload: int = 0) -> None:
        """Open an index or a project.

        Args:
            path: folder of the index or project; labels and decisions are kept in it.
            clips: the clip store; default: the one behind the index.
            max_upload: largest file that may be dropped, in bytes; 0: none.
        """
        self.folder, self.index_folder = Path(path), index_folder(path)
        self.index = load_index(self.index_folder)
        found = clips if clips is not None else clips_folder(path)
        self.clips: Clips | None = None if found is None else open_clips(found)
        self.records: dict[str, ClipRecord] = {one.video_id: one for one in self.clips.records} if self.clips else {}
        self.max_upload = max_upload if load_encoders(self.index_folder) else 0
        self.number = {video.video_id: number for number, video in enumerate(self.index.videos)}
        self.labels, self.decisions = read_labels(self.folder), read_decisions(self.folder)
        self.uploads: OrderedDict[str, Upload] = OrderedDict()
        self.copies = CopySearch(self)
        self.preview = lru_cache(maxsize=PREVIEWS)(self._preview)
        self.embedder = lru_cache(maxsize=1)(lambda: FileEmbedder(self.index_folder, self.index))
        self._scripts: dict[str, bytes] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock, self._embedding = threading.Lock(), threading.Lock()  # one file at a time

    def script(self, name: str) -> bytes | None:
        """Return data/<name>.js; None if there is no such data."""
        if name == "saved":
            return data_script(name, self._saved()).encode()
        makers = self._makers()
        if name not in makers:
            return None
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:  # a map need not wait for clusters
            if name not in self._scripts:
                self._scripts[name] = data_script(name, makers[name]()).encode()
            return self._scripts[name]

    def _makers(self) -> dict[str, Callable[[], Any]]:
        first = page_values(self.index, live=True, top=TOP, copies=self.clips is not None, notes=self._notes())
        first["kinds"] = [kind for kind in KINDS if self.clips is not None and kind in self.clips.modalities]
        first |= {"max_upload": self.max_upload, "saved_in": str(self.folder)}
        makers: dict[str, Callable[[], Any]] = {
            "page": lambda: first,
            "videos": lambda: video_values(self.index),
            "probe": lambda: probe_values(self.index),
        }
        for choice in choices(self.index):
            makers[f"clusters-{choice}"] = partial(cluster_values, self.index, choice)
            for method in first["methods"]:
                makers[f"map-{choice}-{method}"] = partial(map_values, self.index, choice, method)
        return makers

    def _notes(self) -> list[str]:
        missing = sum(video.video_id not in self.records for video in self.index.videos)
        if self.clips is None:
            return ["no clip store, so there are no pictures and no copies; give it with --clips"]
        return [f"{missing} videos of the index are not in the clips"] if missing else []

    def _saved(self) -> Data:
        decisions = [[*pair, decision] for pair, decision in self.decisions.items()]
        return {"labels": self.labels, "decisions": decisions}

    def search(
        self,
        choice: str,
        *,
        video: int | None = None,
        upload: str | None = None,
        part: tuple[int, int] | None = None,
        top: int = TOP,
    ) -> Data:
        """Return the neighbors of a video of the index, or of a dropped file; ValueError if there is no such query.

        Only windows that begin in the frames [start, end) of `part` are compared, or the nearest if there is none;
        `windows` of the result are the first frames of those that were, by the modality that is shown.
        """
        leading = leading_modality(self.index, choice)
        if upload is not None:
            if upload not in self.uploads:
                raise ValueError("this file is not known any more; drop it again")
            dropped, exclude = self.uploads[upload], frozenset[int]()
            starts, vectors, num_frames = dropped.starts, dropped.vectors, dropped.num_frames
        else:
            if video is None or not 0 <= video < len(self.index.videos):
                raise ValueError(f"no video {video}; there are {len(self.index.videos)}")
            exclude, num_frames = frozenset({video}), self.index.videos[video].num_frames
            rows = {name: windows.of_video(video) for name, windows in self.index.windows.items()}
            starts = {name: self.index.windows[name].starts[chosen] for name, chosen in rows.items()}
            vectors = {name: self.index.windows[name].vectors[chosen] for name, chosen in rows.items()}
        if part is not None:
            if not 0 <= part[0] < part[1] or (num_frames and part[1] > num_frames):
                raise ValueError(f"no frames from {part[0]} to {part[1]}; the video has {num_frames}")
            spans = {name: self.index.windows[name].span for name in starts}
            chosen = {name: rows_between(starts[name], spans[name], start=part[0], end=part[1]) for name in starts}
            starts = {name: starts[name][rows] for name, rows in chosen.items()}
            vectors = {name: vectors[name][rows] for name, rows in chosen.items()}
        found = find_neighbors(self.index, vectors, choice, top=top, exclude=exclude).values()
        return {**found, "windows": starts[leading].tolist() if leading in starts else []}

    def _preview(self, video: int, kind: str, start: int | None, span: int) -> bytes | None:
        """Return a loop of a window, or of the middle of a video; None if there are no such frames."""
        record = self.records.get(self.index.videos[video].video_id) if 0 <= video < len(self.index.videos) else None
        if self.clips is None or record is None or kind not in self.clips.modalities:
            return None
        if kind == "flow" and not record.num_flow:
            return None
        return thumbnail(self.clips, record, kind, PREVIEW, window=None if start is None else (start, start + span))

    def embed(self, file: Path, name: str, token: str) -> Data:
        """Embed a dropped file and keep its vectors under `token`; ValueError if it is no video."""
        with self._embedding:
            embedder = self.embedder()
            try:
                embedded = embedder.embed(file)
                clips = VideoFiles([file], next(iter(embedder.encoders.values())).frames)
            except ValueError as error:
                raise ValueError(str(error).replace(str(file), name)) from None
        pictures = {
            kind: thumbnail(clips, clips.records[0], kind, PREVIEW) for kind in KINDS if kind in clips.modalities
        }
        seconds = embedded.num_frames / embedded.fps if embedded.fps > 0 else 0.0
        self.uploads[token] = Upload(
            name, embedded.vectors, embedded.starts, embedded.fps, embedded.num_frames, pictures
        )
        while len(self.uploads) > UPLOADS:
            self.uploads.popitem(last=False)
        length = {"seconds": seconds, "frames": embedded.num_frames, "fps": embedded.fps}
        return {"upload": token, "name": name, **length, "modalities": list(embedded.vectors)}

    def save_labels(self, changes: dict[str, str]) -> str:
        """Add labels, remove those that are empty, and write labels.csv; return its path."""
        for video_id, label in changes.items():
            if video_id not in self.number or not isinstance(label, str) or len(label) > MAX_NAME or not is_text(label):
                raise ValueError(f"a label of {video_id!r} is not possible")
        kept = {**self.labels, **changes}
        self.labels = {video_id: label for video_id, label in kept.items() if label}
        return str(write_labels(self.folder, self.labels))

    def save_decision(self, first: str, second: str, decision: str) -> str:
        """Keep that two videos are copies or different (or undecided, if empty) in copies.csv; return its path."""
        if first not in self.number or second not in self.number or decision not in ("", *DECISIONS):
            raise ValueError(f"{decision!r} about {first!r} and {second!r} is not possible")
        self.decisions[first, second] = decision
        self.decisions = {pair: one for pair, one in self.decisions.items() if one}
        return str(write_decisions(self.folder, self.decisions))


class CopySearch:
    """The search for copies, in a thread of its own; its result is kept beside the index."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.done, self.total, self.error = 0, 0, ""
        self.pairs: list[Data] | None = None
        self._thread: threading.Thread | None = None
        kept = read_copies(explorer.index_folder)
        if kept is not None:
            self.pairs = duplicate_values(kept)

    def start(self) -> None:
        """Begin, unless it has begun; once more if it failed."""
        if self.pairs is None and (self._thread is None or self.error) and self.explorer.clips is not None:
            self.error = ""
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def status(self) -> Data:
        """Return how far it is, and the pairs at the end."""
        state = "done" if self.pairs is not None else "failed" if self.error else "running" if self._thread else "new"
        return {"state": state, "done": self.done, "total": self.total, "error": self.error, "pairs": self.pairs}

    def _run(self) -> None:
        assert self.explorer.clips is not None
        try:
            found = find_copies(self.explorer.index_folder, self.explorer.index, self.explorer.clips, self._progress)
            self.pairs = duplicate_values(found)
        except Exception as error:  # noqa: BLE001 (a thread of its own: any other error would look like "running" forever)
            self.error = str(error) or type(error).__name__

    def _progress(self, done: int, total: int) -> None:
        self.done, self.total = done, total
