"""Embeddings of video files as a table for other programs: Parquet, CSV or NumPy. `covid-cmsf embed`."""

# N rows, D embedding

import csv
import io
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from covid_cmsf import __version__
from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.records import clip_path
from covid_cmsf.devices import choose_device
from covid_cmsf.evaluation.features.file import Features, compute_fingerprint
from covid_cmsf.evaluation.features.inference import WindowOutputs, video_features
from covid_cmsf.evaluation.features.model import wrap_encoder
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.features.shards import SHARD_SIZE, ShardStore
from covid_cmsf.files import atomic_path, escape_cell, write_text_atomic
from covid_cmsf.logs import ProgressFactory, no_progress
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.search.encoders import open_encoder
from covid_cmsf.search.encoders.base import IndexEncoder
from covid_cmsf.search.encoders.trained import TrainedEncoder
from covid_cmsf.video_files import VideoFiles, file_settings
from preprocess.convert import stored_fps
from preprocess.layouts.collection import find_videos, make_video_ids

ENDINGS = (".parquet", ".npy", ".csv")
CHUNK = SHARD_SIZE  # files: the most that a kill can cost


@dataclass(frozen=True)
class EmbeddingTable:
    """One row per video, or per window with its first and last second.

    Example:
        >>> table = cc.embed_files(["my.mp4"], "encoder.safetensors")
        >>> table.ids, table.vectors.shape[0]
        (('my.mp4',), 1)
    """

    ids: tuple[str, ...]  # N; below a folder the path without its ending, else the path
    vectors: NDArray[np.float32]  # (N, D): of a window with unit length, of a video the mean of its windows
    starts: tuple[float, ...] = ()  # seconds; empty if a row is a whole video
    ends: tuple[float, ...] = ()
    skipped: tuple[tuple[str, str, str], ...] = ()  # id, subset, reason of files that could not be read
    files: tuple[str, ...] = ()  # N; the path of each row's video, as it was given; of features the stored clip
    classes: tuple[str, ...] = ()  # N; empty text without a label. These three are of a features file.
    sources: tuple[str, ...] = ()  # N
    subsets: tuple[str, ...] = ()  # N; train, test, val


def embed_files(
    videos: Path | str | Sequence[Path | str],
    weights: Path | str | nn.Module,
    *,
    per_window: bool = False,
    windows: int | None = None,
    device: torch.device | str = "auto",
    batch_size: int = 16,
    out: Path | str | None = None,
    progress: ProgressFactory = no_progress,
) -> EmbeddingTable:
    """Embed video files, or all video files below a folder: `covid-cmsf embed`. Unreadable files are in `skipped`.

    Args:
        videos: a folder, a file, or several files.
        weights: what --weights takes, such as a run folder or weights file; or an encoder in memory with metadata.
        per_window: a row per window, instead of the mean of a video's windows.
        windows: per video; 4 when left out.
        device: auto, cpu, cuda, ...
        batch_size: windows that pass the network together.
        out: also write the table there. What is done is kept beside it, so the same call goes on after a kill.
        progress: `covid_cmsf.logs.progress_bar` shows a bar.

    Example:
        >>> table = cc.embed_files(["my.mp4"], "encoder.safetensors", per_window=True, windows=2)
        >>> len(table.ids), len(table.starts)
        (2, 2)
    """
    files = list_files(videos)
    if isinstance(weights, nn.Module):
        encoder = _wrap(weights, windows)
    else:
        encoder = open_encoder(str(weights), num_windows=windows)
    paths, ids = list(files.values()), list(files)
    place = choose_device(str(device))

    def embed_chunk(numbers: range, advance: Callable[[], None]) -> WindowOutputs:
        chosen = [ids[number] for number in numbers]
        clips = VideoFiles([files[name] for name in chosen], encoder.frames, ids=chosen, skip_unreadable=True)
        for _ in clips.failures:
            advance()
        outputs = encoder.embed(clips, clips.records, device=place, batch_size=batch_size, on_video=advance)
        number_of = dict(zip(chosen, numbers, strict=True))
        readable = [number_of[record.video_id] for record in clips.records]
        errors = {number_of[failure.video_id]: failure.reason for failure in clips.failures}
        errors |= {readable[number]: reason for number, reason in outputs.errors.items()}
        return replace(
            outputs, window_videos=torch.tensor(readable, dtype=torch.int64)[outputs.window_videos], errors=errors
        )

    chunks = [range(first, min(first + CHUNK, len(ids))) for first in range(0, len(ids), CHUNK)]
    with ExitStack() as stack:
        advance = stack.enter_context(progress("videos", len(ids)))
        if out is None:
            return _make_table([embed_chunk(chunk, advance) for chunk in chunks], paths, ids, encoder, per_window)
        check_table_path(Path(out))
        fingerprints = _fingerprints(chunks, paths, ids, encoder, batch_size=batch_size, device=place)
        store = stack.enter_context(ShardStore(Path(out), fingerprints))
        done = store.open()
        for number, chunk in enumerate(chunks):
            if number in done:
                for _ in chunk:
                    advance()
            else:
                store.save(number, embed_chunk(chunk, advance))
        outputs = [store.load(number) for number in range(len(chunks))]
        table = _make_table(outputs, paths, ids, encoder, per_window)
        save_embeddings(out, table)
        store.remove()
    return table


def features_table(features: Features, *, clips: Path | str | None = None) -> EmbeddingTable:
    """Return the videos of a features file as a table, with their classes, sources and subsets.

    Args:
        features: what `load_features` returned.
        clips: the clip store that they were computed from: then `files` has the stored RGB clip of every video.

    Example:
        >>> table = cc.features_table(cc.load_features("rgb.safetensors"))
        >>> len(table.ids) == len(table.classes) == len(table.vectors)
        True
    """
    videos = features.videos
    return EmbeddingTable(
        videos.ids,
        features.features.float().numpy(),
        skipped=features.skipped,
        classes=tuple(videos.class_names[label] if label >= 0 else "" for label in videos.labels.tolist()),
        sources=videos.sources,
        subsets=videos.subsets,
        files=() if clips is None else _stored_files(Path(clips), videos.ids),
    )


def features_clips(path: Path, features: Features) -> Path | None:
    """Return the clip store that a features file names, if it is still there."""
    name = features.provenance.clips_path
    store = path.parent / name
    return store if name and (store / "store.json").is_file() else None


def _stored_files(store: Path, ids: Sequence[str]) -> tuple[str, ...]:
    """Return the RGB clip of every video; FileNotFoundError if the store lacks one."""
    files = [clip_path(store, "rgb", name) for name in ids]
    if missing := [path for path in files if not path.is_file()]:
        raise FileNotFoundError(f"{missing[0]} is missing: {store} is not the store of these features, or has no RGB")
    return tuple(map(str, files))


def _fingerprints(
    chunks: Sequence[range],
    paths: Sequence[Path],
    ids: Sequence[str],
    encoder: IndexEncoder,
    *,
    batch_size: int,
    device: torch.device,
) -> list[str]:
    """Return what the outputs of every chunk depend on: the encoder, and size and time of the files."""
    common = {
        "weights_sha256": weights_sha256(encoder.model.network),
        "eval_protocol": encoder.eval_protocol.model_dump(mode="json"),
        "frames": encoder.frames.model_dump(mode="json"),
        "batch_size": batch_size,
        "device": device.type,
        "software": f"covid-cmsf {__version__}",
    }
    states = [path.stat() for path in paths]
    return [
        compute_fingerprint({**common, "files": [[ids[n], states[n].st_size, states[n].st_mtime_ns] for n in chunk]})
        for chunk in chunks
    ]


def _make_table(
    chunks: Sequence[WindowOutputs],
    paths: Sequence[Path],
    ids: Sequence[str],
    encoder: IndexEncoder,
    per_window: bool,
) -> EmbeddingTable:
    """Join the outputs of all chunks; ValueError if no file could be read."""
    errors = {number: reason for chunk in chunks for number, reason in chunk.errors.items()}
    skipped = tuple((ids[number], "file", errors[number]) for number in sorted(errors))
    if len(skipped) == len(ids):
        raise ValueError(f"none of {len(ids)} files could be read; the first: {skipped[0][2]}")
    windows = torch.cat([chunk.windows for chunk in chunks if len(chunk.windows)])
    videos, starts = (torch.cat([getattr(one, name) for one in chunks]) for name in ("window_videos", "window_starts"))
    present = torch.unique(videos)
    if not per_window:
        vectors = video_features(windows, videos, len(ids))[present]
        return EmbeddingTable(
            tuple(ids[number] for number in present),
            vectors.numpy(),
            skipped=skipped,
            files=tuple(str(paths[number]) for number in present),
        )
    rates = {number: _frame_rate(paths[number], encoder) for number in present.tolist()}
    times = [(start, rates[number]) for start, number in zip(starts.tolist(), videos.tolist(), strict=True)]
    return EmbeddingTable(
        tuple(ids[number] for number in videos.tolist()),
        F.normalize(windows, dim=1).numpy(),
        starts=tuple(start / rate for start, rate in times),
        ends=tuple((start + encoder.span) / rate for start, rate in times),
        skipped=skipped,
        files=tuple(str(paths[number]) for number in videos.tolist()),
    )


def _frame_rate(path: Path, encoder: IndexEncoder) -> float:
    with open_video(path) as reader:
        return float(stored_fps(reader, encoder.frames))


def list_files(videos: Path | str | Sequence[Path | str]) -> dict[str, Path]:
    """Return {id: path} of a file, of several, or of the video files below a folder; FileNotFoundError if one lacks."""
    if isinstance(videos, Path | str):
        folder = Path(videos)
        if folder.is_dir():
            return {video_id: folder / path for path, video_id in make_video_ids(find_videos(folder)).items()}
        videos = [videos]
    files = {str(path): Path(path) for path in videos}
    if not files:
        raise ValueError("no video files to embed")
    for path in files.values():
        if not path.exists():
            raise FileNotFoundError(f"no video file or folder {path}")
        if path.is_dir():
            raise ValueError(f"{path} is a folder: give one folder, or files")
    return files


def save_embeddings(path: Path | str, table: EmbeddingTable) -> list[Path]:
    """Write a table as .parquet, .csv or .npy, and return the files; beside x.npy, x.csv has ids and files of its rows.

    Example:
        >>> cc.save_embeddings("embeddings.npy", cc.embed_files("my.mp4", "encoder.safetensors"))
        [PosixPath('embeddings.npy'), PosixPath('embeddings.csv')]
    """
    path = Path(path)
    check_table_path(path)
    if path.suffix == ".parquet":
        _write_parquet(path, table)
        return [path]
    if path.suffix == ".csv":
        write_text_atomic(path, _csv_text(table, with_vectors=True))
        return [path]
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, table.vectors, allow_pickle=False)
    write_text_atomic(path.with_suffix(".csv"), _csv_text(table, with_vectors=False))
    return [path, path.with_suffix(".csv")]


def check_table_path(path: Path) -> None:
    """Raise ValueError or FileNotFoundError if a table can't be written there: before anything is embedded."""
    if path.suffix not in ENDINGS:
        raise ValueError(f"{path}: tables are written as {', '.join(ENDINGS)}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent} to write {path.name} into")
    if path.suffix == ".parquet":
        _import_pyarrow()


def _wrap(encoder: nn.Module, windows: int | None) -> IndexEncoder:
    model = wrap_encoder(encoder)
    protocol = build_eval_protocol(model.metadata, num_windows=windows)
    return TrainedEncoder(protocol.modality, model, protocol, file_settings(model.metadata))


def _columns(table: EmbeddingTable) -> dict[str, Sequence[str] | Sequence[float]]:
    times: dict[str, Sequence[float]] = {"start": table.starts, "end": table.ends} if table.starts else {}
    files: dict[str, Sequence[str]] = {"file": table.files} if table.files else {}
    texts = {"class": table.classes, "source": table.sources, "subset": table.subsets}
    return {"id": table.ids, **files, **{name: values for name, values in texts.items() if values}, **times}


def _csv_text(table: EmbeddingTable, *, with_vectors: bool) -> str:
    columns = _columns(table)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [f"f{number}" for number in range(table.vectors.shape[1])] if with_vectors else []
    writer.writerow([*columns, *names])
    for number, values in enumerate(zip(*columns.values(), strict=True)):
        numbers = [f"{value:.9g}" for value in table.vectors[number].tolist()] if with_vectors else []  # exact
        writer.writerow([*(escape_cell(value) for value in values), *numbers])
    return text.getvalue()


def _write_parquet(path: Path, table: EmbeddingTable) -> None:
    pa, parquet = _import_pyarrow()
    size = table.vectors.shape[1]
    flat = pa.array(np.ascontiguousarray(table.vectors).reshape(-1), type=pa.float32())
    columns = {name: pa.array([_utf8(value) for value in values]) for name, values in _columns(table).items()}
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(flat, size)
    with atomic_path(path) as temporary:
        parquet.write_table(pa.table(columns), temporary)


def _utf8(value: str | float) -> str | float:
    """Replace undecodable bytes of file names: Parquet's text is UTF-8."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _import_pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module, which have no types."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError("Parquet needs pyarrow: pip install 'covid-cmsf[parquet]'; or write .csv or .npy") from None
    return pyarrow, parquet
