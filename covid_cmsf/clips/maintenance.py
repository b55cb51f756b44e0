"""Check, merge and summarize clip stores (`covid-cmsf clips check|merge|info`)."""

import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import numpy as np

from covid_cmsf.clips.acceptance import accept_failures, read_accepted
from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.duplicates import find_duplicates
from covid_cmsf.clips.records import (
    FLOW_MODALITIES,
    ClipRecord,
    Failure,
    StoredModality,
    StoreInfo,
    clip_path,
    get_column,
    info_to_json,
    raise_conflict,
    write_failures,
    write_manifest,
    write_split,
)
from covid_cmsf.clips.store import ClipStore, verify_clip
from covid_cmsf.config import config_differences
from covid_cmsf.files import atomic_path, write_text_atomic


def check_store(store: ClipStore, *, num_workers: int = 1, on_video: Callable[[], None] = lambda: None) -> list[str]:
    """Decode every frame of every file; return the errors found, one sentence each, in a fixed order.

    Lengths and sizes must match the manifest, no file may be missing or without a record, and no source file may be in
    two classes or in two subsets of a split.
    """
    errors = [*_find_table_errors(store), *find_duplicates(store.records, store.splits), *_find_orphan_files(store)]
    check = partial(check_video, store.path, store.info)
    if num_workers == 1:
        results: Iterator[list[str]] = map(check, store.records)
        return errors + _collect_errors(results, on_video)
    with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
        return errors + _collect_errors(pool.map(check, store.records, chunksize=4), on_video)


def check_video(root: Path, info: StoreInfo, record: ClipRecord) -> list[str]:
    """Return the errors found in the files of one video."""
    errors = []
    for modality in info.modalities:
        path = clip_path(root, modality, record.video_id)
        count = record.num_flow if modality in FLOW_MODALITIES else record.num_frames
        size = _stored_size(info, record, modality)
        if not path.is_file():
            errors.append(f"{path} is missing")
            continue
        try:
            verify_clip(path, record, modality)
            with open_video(path) as video:
                shapes = [frame.shape[:2] for frame in video.frames()]
        except ValueError as error:
            errors.append(f"{path}: {error}")
            continue
        if len(shapes) != count:
            errors.append(f"{path} has {len(shapes)} frames, the manifest says {count}")
        elif set(shapes) != {size}:
            errors.append(f"{path} has frames of {shapes[0][::-1]}, the manifest says {size[::-1]}")
    return errors


def _stored_size(info: StoreInfo, record: ClipRecord, modality: str) -> tuple[int, int]:
    """Return height and width of a stored picture."""
    if modality == "audio":
        assert info.audio is not None
        return info.audio.num_mels, info.audio.columns
    return record.height * (2 if modality in FLOW_MODALITIES else 1), record.width


def _collect_errors(results: Iterator[list[str]], on_video: Callable[[], None]) -> list[str]:
    errors = []
    for found in results:
        errors += found
        on_video()
    return errors


def _find_table_errors(store: ClipStore) -> Iterator[str]:
    if not store.records:
        yield "the manifest is empty"
    known = set(get_column(store.records, "video_id"))
    failed = {failure.video_id for failure in store.failures}
    listed = known | failed
    for name, split in store.splits.items():
        missing = [video_id for video_id in split if video_id not in listed]
        if missing:
            yield f"split {name}: {len(missing)} videos are not in the manifest, for example {missing[0]!r}"
    for video_id in sorted(known & failed):
        yield f"{video_id!r} is both in the manifest and in failures.csv"
    labels: dict[int, str] = {}
    label_of: dict[str, int] = {}
    for record in store.records:
        if labels.setdefault(record.label, record.class_name) != record.class_name:
            yield f"label {record.label} means both {labels[record.label]!r} and {record.class_name!r}"
        if label_of.setdefault(record.class_name, record.label) != record.label:
            yield f"class {record.class_name!r} has both label {label_of[record.class_name]} and {record.label}"
        if store.info.quantized is not None and record.num_flow != record.num_frames - 1:
            yield f"{record.video_id!r} has {record.num_frames} frames but {record.num_flow} flow frames"


def _find_orphan_files(store: ClipStore) -> Iterator[str]:
    """Yield an error per file without a record.

    A run that was killed between renaming and recording leaves such files; the next `preprocess` overwrites them.
    """
    known = {clip_path(store.path, m, r.video_id) for m in store.info.modalities for r in store.records}
    for modality in get_args(StoredModality):
        for path in sorted((store.path / modality).rglob("*")):
            if path.is_file() and path not in known:
                yield f"{path} is in no record"


# Merging stores made from shards of one collection.


def merge_stores(
    stores: Sequence[ClipStore], out: Path, *, on_video: Callable[[], None] = lambda: None
) -> tuple[int, int]:
    """Create the store `out` from `stores`, which are not changed; return the numbers of files linked and copied.

    Files are hard links if possible, else copies. Stores that differ in settings, labels or content are an error. The
    tables are written last, so an interrupted merge is not a store yet and can be run again.
    """
    if (out / "manifest.csv").exists():
        raise FileExistsError(f"{out} already is a finished store; choose another --out")
    first = stores[0]
    for store in stores[1:]:
        _check_same_format(first, store)
    _check_labels(stores)
    for name in {name for store in stores for name in store.splits}:
        _merge_splits(stores, name)  # before any file is linked
    records: dict[str, ClipRecord] = {}
    origin: dict[str, ClipStore] = {}
    for store in stores:
        for record in store.records:
            if _content(records.setdefault(record.video_id, record)) != _content(record):
                raise ValueError(f"{record.video_id!r} differs between {origin[record.video_id].path} and {store.path}")
            origin.setdefault(record.video_id, store)
    linked, copied = 0, 0
    for video_id, store in origin.items():
        for modality in store.info.modalities:
            if _link_or_copy(clip_path(store.path, modality, video_id), clip_path(out, modality, video_id)):
                linked += 1
            else:
                copied += 1
        on_video()
    failures: dict[str, Failure] = {failure.video_id: failure for store in stores for failure in store.failures}
    (out / "splits").mkdir(parents=True, exist_ok=True)
    for name in sorted({name for store in stores for name in store.splits}):
        write_split(out / "splits" / f"{name}.csv", _merge_splits(stores, name))
    write_failures(out / "failures.csv", (f for f in failures.values() if f.video_id not in records))
    accept_failures(
        out, [f.video_id for store in stores for f in read_accepted(store.path) if f.video_id not in records]
    )
    write_text_atomic(out / "store.json", info_to_json(_merged_info(stores)))
    write_manifest(out / "manifest.csv", records.values())
    return linked, copied


def _merge_splits(stores: Sequence[ClipStore], name: str) -> dict[str, str]:
    """Return {video_id: subset} of all stores; ValueError if two disagree about a video."""
    merged: dict[str, str] = {}
    for store in stores:
        split = store.splits.get(name, {})
        raise_conflict(
            ((video_id, merged.get(video_id, subset), subset) for video_id, subset in split.items()),
            f"split {name} of the stores",
        )
        merged.update(split)
    return merged


def _content(record: ClipRecord) -> ClipRecord:
    """Return a record without what may differ between machines: the source's time, and the encoder's bytes."""
    encoded: dict[str, Any] = {f"{modality}_bytes": 0 for modality in get_args(StoredModality)}
    encoded |= {f"{modality}_sha256": "" for modality in get_args(StoredModality)}
    return replace(record, source_mtime_ns=0, **encoded)


def _check_same_format(first: ClipStore, other: ClipStore) -> None:
    first_format, other_format = (
        store.info.model_dump(
            exclude={"software": True, "flow": {"version"}, "motion": {"version"}, "audio": {"version"}}
        )
        for store in (first, other)
    )
    for key, (first_value, other_value) in config_differences(first_format, other_format).items():
        raise ValueError(f"{first.path} and {other.path} differ in {key}: {first_value!r} and {other_value!r}")


def _check_labels(stores: Sequence[ClipStore]) -> None:
    """Raise ValueError unless each class has one label and each label one class in all stores."""
    labels: dict[str, int] = {}
    names: dict[int, str] = {}
    for store in stores:
        for record in store.records:
            label, name = record.label, record.class_name
            if labels.setdefault(name, label) != label or names.setdefault(label, name) != name:
                raise ValueError(
                    f"class {name!r} has label {label} in {store.path}, but another one in a store before it: "
                    "were the shards made from the same collection?"
                )


def _merged_info(stores: Sequence[ClipStore]) -> StoreInfo:
    """Return the first store's settings, with the versions of all stores."""
    merged = stores[0].info
    for modality in (*FLOW_MODALITIES, "audio"):
        origins = [origin for store in stores if (origin := getattr(store.info, modality)) is not None]
        versions = " | ".join(dict.fromkeys(version for one in origins for version in one.version.split(" | ")))
        if origins:
            merged = merged.model_copy(update={modality: origins[0].model_copy(update={"version": versions})})
    return merged


def _link_or_copy(source: Path, target: Path) -> bool:
    """Link or copy `source` to `target`; return whether it is a hard link."""
    if not source.is_file():
        raise FileNotFoundError(f"{source} is missing; `covid-cmsf clips check` lists all errors of a store")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        os.link(source, temporary)
        temporary.replace(target)  # the file of an interrupted merge, if there is one
        return True
    except OSError:  # another file system, or one without hard links: a copy has the same content
        with atomic_path(target) as temporary_copy:
            shutil.copyfile(source, temporary_copy)
        return False
    finally:
        temporary.unlink(missing_ok=True)  # still there if `target` was this very link


# Summary: counts, sizes, hours, motion.


@dataclass(frozen=True)
class StoreSummary:
    """The numbers that `clips info` prints; `subsets` counts videos per split and subset, `classes` also per class."""

    num_videos: int
    num_sources: int
    num_failures: int
    num_frames: int
    hours: float
    frame_sizes: dict[str, int]  # "320x240": videos
    bytes: dict[str, int]  # modality: bytes on disk
    subsets: dict[str, dict[str, int]]  # split: {subset: videos}
    classes: dict[str, dict[str, dict[str, int]]]  # class: {split: {subset: videos}}
    flow: dict[str, float] | None


def summarize(store: ClipStore, *, num_sampled: int = 20) -> StoreSummary:
    """Summarize a store; the motion is measured on `num_sampled` videos drawn with a fixed seed."""
    records = store.records
    subset_of = {
        name: {r.video_id: split.get(r.video_id, "none") for r in records} for name, split in store.splits.items()
    }
    classes: dict[str, dict[str, dict[str, int]]] = {}
    for record in records:
        by_split = classes.setdefault(record.class_name, {name: {} for name in subset_of})
        for name, subsets in subset_of.items():
            subset = subsets[record.video_id]
            by_split[name][subset] = by_split[name].get(subset, 0) + 1
    return StoreSummary(
        num_videos=len(records),
        num_sources=len({record.source for record in records}),
        num_failures=len(store.failures),
        num_frames=sum(record.num_frames for record in records),
        hours=sum(record.num_frames / record.fps for record in records) / 3600,
        frame_sizes=dict(Counter(f"{record.width}x{record.height}" for record in records).most_common()),
        bytes={
            modality: sum(_file_size(clip_path(store.path, modality, record.video_id)) for record in records)
            for modality in store.info.modalities
        },
        subsets={name: dict(sorted(Counter(subsets.values()).items())) for name, subsets in subset_of.items()},
        classes=dict(sorted(classes.items())),
        flow=flow_statistics(store, num_videos=num_sampled) if store.info.flow is not None and records else None,
    )


def _file_size(path: Path) -> int:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; `covid-cmsf clips check` lists all errors of a store")
    return path.stat().st_size


def flow_statistics(store: ClipStore, *, num_videos: int, seed: int = 0) -> dict[str, float]:
    """Measure the motion in a sample of videos, eight frames each.

    `mean_magnitude_px` is in pixels per frame, `clipped_fraction` the fraction of components at the flow bound,
    `quantization_error` the expected error of rounding to levels, as a share of the mean motion (video coding adds to
    it), and `bound_px` the mean bound.
    """
    sampled = np.random.default_rng(seed).permutation(len(store.records))[:num_videos]
    magnitudes, clipped, errors, bounds = [], [], [], []
    for index in sampled:
        record = store.records[int(index)]
        frame_indices = np.linspace(0, record.num_flow - 1, min(8, record.num_flow)).astype(int).tolist()
        flow = store.read(record, "flow", frame_indices)
        levels = store.flow_levels(record)
        magnitudes.append(float(flow.square().sum(1).sqrt().mean()))
        clipped.append(float((flow.abs() > levels.bound * 0.99).float().mean()))
        errors.append(levels.mean_error)
        bounds.append(levels.bound)
    return {
        "num_videos": len(sampled),
        "mean_magnitude_px": float(np.mean(magnitudes)),
        "clipped_fraction": float(np.mean(clipped)),
        "quantization_error": float(np.mean(errors)) / max(float(np.mean(magnitudes)), 1e-9),
        "bound_px": float(np.mean(bounds)),
    }
