"""Is a clip store whole? Every file opens, lengths and sizes match the manifest, nothing is missing or left over."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.manifest import ClipRecord
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.clips.store_info import clip_path


def check_store(store: ClipStore, *, num_workers: int = 1, on_video: Callable[[], None] = lambda: None) -> list[str]:
    """Decodes every frame of every file; returns the faults found, one sentence each, in a fixed order."""
    faults = [*_table_faults(store), *_orphans(store)]
    check = partial(check_video, store.path, store.info.modalities)
    if num_workers == 1:
        results: Iterator[list[str]] = map(check, store.records)
        return faults + _collect(results, on_video)
    with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
        return faults + _collect(pool.map(check, store.records, chunksize=4), on_video)


def check_video(root: Path, modalities: tuple[str, ...], record: ClipRecord) -> list[str]:
    """The faults of one video's files."""
    faults = []
    for modality in modalities:
        path = clip_path(root, modality, record.video_id)
        flow = modality == "flow"
        count = record.num_flow if flow else record.num_frames
        size = (record.height * (2 if flow else 1), record.width)
        if not path.is_file():
            faults.append(f"{path} is missing")
            continue
        try:
            with open_video(path) as video:
                shapes = [frame.shape[:2] for frame in video.frames()]
        except ValueError as error:
            faults.append(f"{path}: {error}")
            continue
        if len(shapes) != count:
            faults.append(f"{path} has {len(shapes)} frames, the manifest says {count}")
        elif set(shapes) != {size}:
            faults.append(f"{path} has frames of {shapes[0][::-1]}, the manifest says {size[::-1]}")
    return faults


def _collect(results: Iterator[list[str]], on_video: Callable[[], None]) -> list[str]:
    faults = []
    for found in results:
        faults += found
        on_video()
    return faults


def _table_faults(store: ClipStore) -> Iterator[str]:
    if not store.records:
        yield "the manifest is empty"
    known = {record.video_id for record in store.records}
    aside = {failure.video_id for failure in store.failures}
    for name, split in store.splits.items():
        lost = [video_id for video_id in split if video_id not in known | aside]
        if lost:
            yield f"split {name}: {len(lost)} videos are not in the manifest, for example {lost[0]!r}"
    for video_id in sorted(known & aside):
        yield f"{video_id!r} stands both in the manifest and in failures.csv"
    labels: dict[int, str] = {}
    for record in store.records:
        if labels.setdefault(record.label, record.class_name) != record.class_name:
            yield f"label {record.label} means both {labels[record.label]!r} and {record.class_name!r}"
        if "flow" in store.info.modalities and record.num_flow != record.num_frames - 1:
            yield f"{record.video_id!r} has {record.num_frames} frames but {record.num_flow} flow frames"


def _orphans(store: ClipStore) -> Iterator[str]:
    """Files that no record knows. A run that was killed between renaming and recording leaves some; the next
    `preprocess` overwrites them."""
    known = {clip_path(store.path, m, r.video_id) for m in store.info.modalities for r in store.records}
    for modality in ("rgb", "flow"):
        for path in sorted((store.path / modality).rglob("*")):
            if path.is_file() and path not in known:
                yield f"{path} is in no record"
