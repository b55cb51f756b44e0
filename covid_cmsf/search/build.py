"""Make an index from features files, from a clip store, or straight from video files; add videos to one.

Encoders come with it (`encoders`), so that video files can be queries. Extraction resumes after a stop: the features
files that are not yet in the index stay in its folder until it is written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.fingerprint import files_fingerprint, paths_fingerprint
from covid_cmsf.clips.names import escape_name
from covid_cmsf.clips.records import Failure, StoreInfo, get_column, write_split
from covid_cmsf.devices import choose_devices
from covid_cmsf.evaluation.features.extract import extract_features
from covid_cmsf.evaluation.features.file import Features, load_features
from covid_cmsf.logs import ProgressFactory, no_progress
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.search.encoders import features_encoder
from covid_cmsf.search.encoders.base import IndexEncoder
from covid_cmsf.search.index import SearchIndex, build_index, extend_index, load_encoders, load_index, save_index
from covid_cmsf.search.project import STORE_FILE, index_folder, source_folder
from covid_cmsf.video_files import VideoFiles
from preprocess.layouts.collection import find_videos, make_video_ids

Skipped = tuple[tuple[str, str, str], ...]  # id, subset, reason


@dataclass(frozen=True)
class Extraction:
    """How features are computed."""

    device: torch.device | str = "auto"
    num_processes: int | None = 1  # that share the videos; None: one per GPU
    num_workers: int = 0  # of each process
    batch_size: int | None = None
    progress: ProgressFactory = no_progress


def index_features(
    paths: Sequence[Path | str],
    *,
    clips: Path | str | None = None,
    encoders: Sequence[IndexEncoder] = (),
    weights: Mapping[str, float] | None = None,
) -> tuple[SearchIndex, dict[str, IndexEncoder]]:
    """Return the index of features files and the encoders behind them, as far as they are found.

    Args:
        paths: one features file per modality.
        clips: the clip store of the features; default: where the first file says it is, if it is still there.
        encoders: for files whose checkpoint was moved; each must have the weights of one file.
        weights: of the modalities in `fused`.
    """
    given = {weights_sha256(encoder.model.network): encoder for encoder in encoders}
    loaded: dict[str, Features] = {}
    found: dict[str, IndexEncoder] = {}
    for path in map(Path, paths):
        features = load_features(path)
        encoder = given.pop(features.provenance.weights_sha256, None)
        if encoder is not None:
            encoder = replace(encoder, eval_protocol=features.provenance.eval_protocol)
        else:
            encoder = features_encoder(path, features)
        name = features.provenance.eval_protocol.modality if encoder is None else encoder.name
        if name in loaded:
            raise ValueError(f"{path}: another file has features of {name} already; give one file per modality")
        loaded[name] = features
        if encoder is not None:
            found[name] = encoder
        recorded = path.parent / features.provenance.clips_path
        if clips is None and features.provenance.clips_path and recorded.is_dir():
            clips = recorded
    if given:
        names = ", ".join(encoder.model.origin for encoder in given.values())
        raise ValueError(f"no features file was computed with the weights of {names}")
    opened = None if clips is None else open_clips(clips)
    info = None if opened is None else opened.info
    index = build_index(loaded, opened, weights=weights)
    return index, {name: encoder.with_frames(info) for name, encoder in found.items()}


def index_videos(
    source: Path | str,
    encoders: Sequence[IndexEncoder],
    folder: Path | str,
    *,
    weights: Mapping[str, float] | None = None,
    extraction: Extraction | None = None,
) -> tuple[SearchIndex, Skipped]:
    """Embed all videos of a clip store or of a folder of video files, write their index, and return what was skipped.

    Args:
        source: a clip store, or a folder with video files at any depth.
        encoders: one per entry of the index, see `open_encoder`.
        folder: the index to write.
        weights: of the modalities in `fused`.
        extraction: device, workers and progress.
    """
    source, folder = Path(source), Path(folder)
    names = [encoder.name for encoder in encoders]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"encoders of {', '.join(names) or 'nothing'}: give the weights of one per modality")
    if set(weights or {}) - set(names):
        raise ValueError(f"weights for {', '.join(weights or {})}, but the encoders are {', '.join(names)}")
    opened = _open_for(source, encoders, set(), extraction)
    prepared = [encoder.with_frames(clips.info) for encoder, clips in zip(encoders, opened, strict=True)]
    features, files = _extract(prepared, opened, folder, set(), extraction)
    index = replace(build_index(features, opened[0], weights=weights), clips_path=source)
    save_index(folder, index, {encoder.name: encoder for encoder in prepared})
    _remove(files)
    return index, _skipped(features)


def is_index_of(
    folder: Path | str,
    source: Path | str,
    encoders: Sequence[IndexEncoder],
    *,
    weights: Mapping[str, float] | None = None,
) -> bool:
    """Tell whether a folder has, undamaged, what `index_videos` would write of all these videos; nothing is embedded.

    False also if some of the videos could not be read, which are not in the index, or if their files have other sizes
    or times than when they were embedded.
    """
    index, stored = load_index(folder), load_encoders(folder)
    if {encoder.name for encoder in encoders} != set(stored) or dict(weights or index.weights) != index.weights:
        return False
    for encoder in encoders:
        other = stored[encoder.name]
        if encoder.eval_protocol != other.eval_protocol:
            return False
        if weights_sha256(encoder.model.network) != weights_sha256(other.model.network):
            return False
    source = Path(source)
    if index.clips_path is None or index.clips_path.resolve() != source.resolve():
        return False
    ids, fingerprint = _videos_now(source)
    if ids != {video.video_id for video in index.videos}:
        return False
    stored_modality = {name: one.eval_protocol.resolve_modality().stored_modality for name, one in stored.items()}
    return all(
        index.windows[name].provenance.get("videos_sha256") == fingerprint(modality)
        for name, modality in stored_modality.items()
    )


def _videos_now(source: Path) -> tuple[set[str], Callable[[str], str]]:
    """Return the ids of the videos of a store or folder, and their files' fingerprint by modality; none is opened."""
    if (source / STORE_FILE).is_file() or not source.is_dir():
        clips = open_clips(source)
        ids = set(get_column(clips.records, "video_id"))
        return ids, lambda modality: files_fingerprint(clips, clips.records, (modality,))
    paths = {escape_name(name): source / path for path, name in make_video_ids(find_videos(source)).items()}
    return set(paths), lambda modality: paths_fingerprint((name, modality, path) for name, path in paths.items())


def is_same_index(folder: Path | str, built: SearchIndex) -> bool:
    """Tell whether a folder has this index, undamaged."""
    index = load_index(folder)
    return (index.videos, index.weights, index.windows.keys()) == (
        built.videos,
        dict(built.weights),
        built.windows.keys(),
    ) and all(dict(built.windows[name].provenance) == one.provenance for name, one in index.windows.items())


def add_to_index(
    folder: Path | str, source: Path | str, *, extraction: Extraction | None = None
) -> tuple[int, Skipped]:
    """Embed the videos of `source` that an index does not have yet, with its own encoders, and add them.

    Returns the number of added videos, and those that could not be read. The index is what `index_videos` of all
    videos would write, up to rounding. Videos that are gone from `source` stay in the index.
    """
    folder, source = index_folder(folder), Path(source)
    index, encoders = load_index(folder), load_encoders(folder)
    missing = [name for name in index.windows if name not in encoders]
    if missing:
        raise ValueError(f"{folder} has no encoder for {', '.join(missing)}; build it again with --weights")
    done = {video.video_id for video in index.videos}
    chosen = [encoders[name] for name in index.windows]
    opened = _open_for(source, chosen, done, extraction)
    if set(get_column(opened[0].records, "video_id")) <= done:
        return 0, tuple((one.video_id, "test", one.reason) for one in _unreadable(opened[0]))
    features, files = _extract(chosen, opened, folder, done, extraction)
    extended = replace(extend_index(index, features, opened[0]), clips_path=source)
    save_index(folder, extended, encoders)
    _remove(files)
    return len(extended.videos) - len(index.videos), _skipped(features)


def open_source(
    source: Path | str,
    frames: StoreInfo,
    *,
    wanted: Callable[[str], bool] = lambda video_id: True,
    progress: ProgressFactory = no_progress,
) -> Clips:
    """Open a clip store, or the video files of a folder whose ids are `wanted`, with these settings.

    Files that can't be decoded are in `failures`.
    """
    source = Path(source)
    if (source / STORE_FILE).is_file() or not source.is_dir():
        return open_clips(source)
    ids = {path: escape_name(name) for path, name in make_video_ids(find_videos(source)).items()}
    ids = {path: video_id for path, video_id in ids.items() if wanted(video_id)}
    with progress("files", len(ids)) as advance:
        return VideoFiles(
            [source / path for path in ids], frames, ids=list(ids.values()), skip_unreadable=True, on_video=advance
        )


def open_pictures(
    folder: Path | str, wanted: Callable[[str], bool] = lambda video_id: True, *, clips: Path | str | None = None
) -> Clips | None:
    """Return the videos behind an index or project, for their pictures; None if they are not where they were.

    Args:
        folder: of the index or project.
        wanted: the ids of the videos that are needed; video files are decoded once when they are opened.
        clips: where the clip store or the folder of video files is, if it was moved.
    """
    source = source_folder(folder) if clips is None else Path(clips)
    if source is None:
        return None
    if (source / STORE_FILE).is_file():
        return open_clips(source)
    encoders = list(load_encoders(folder).values())
    if not encoders:
        raise ValueError(f"{folder} has no encoder, so it is unknown how {source} was read; give --clips STORE")
    return open_source(source, encoders[0].frames, wanted=wanted)


def _open_for(
    source: Path, encoders: Sequence[IndexEncoder], done: set[str], extraction: Extraction | None
) -> list[Clips]:
    """Return the clips of every encoder; encoders that take the same frames share them."""
    progress = (extraction or Extraction()).progress
    opened: dict[str, Clips] = {}
    clips = []
    for encoder in encoders:
        key = "" if (source / STORE_FILE).is_file() else encoder.frames.model_dump_json()
        if key not in opened:
            opened[key] = open_source(source, encoder.frames, wanted=lambda name: name not in done, progress=progress)
        clips.append(opened[key])
    return clips


def _unreadable(clips: Clips) -> list[Failure]:
    """Return the video files that could not be decoded when they were opened; a clip store has only those that can."""
    return clips.failures if isinstance(clips, VideoFiles) else []


def _extract(
    encoders: Sequence[IndexEncoder],
    opened: Sequence[Clips],
    folder: Path,
    done: set[str],
    extraction: Extraction | None,
) -> tuple[dict[str, Features], list[Path]]:
    """Return the features of all videos that are not `done`, and the files to remove when the index is written."""
    how = extraction or Extraction()
    folder.mkdir(parents=True, exist_ok=True)
    split = folder / ".all.csv"
    features, files = {}, [split]
    for encoder, clips in zip(encoders, opened, strict=True):
        ids = [name for name in get_column(clips.records, "video_id") if name not in done]
        failures = [one.video_id for one in _unreadable(clips)]
        write_split(split, dict.fromkeys([*ids, *failures], "test"))
        out = folder / f".{encoder.name}.features"
        with how.progress(f"{encoder.name} of videos", len(ids)) as advance:
            features[encoder.name] = extract_features(
                encoder.model,
                clips,
                out,
                eval_protocol=encoder.eval_protocol,
                split=str(split),
                batch_size=how.batch_size,
                num_workers=how.num_workers,
                device=choose_devices(str(how.device), how.num_processes),
                replace=True,
                on_video=advance,
            )
        files.append(out)
    return features, files


def _skipped(features: Mapping[str, Features]) -> Skipped:
    return tuple({entry[0]: entry for one in features.values() for entry in one.skipped}.values())


def _remove(files: Sequence[Path]) -> None:
    for path in files:
        path.unlink(missing_ok=True)
