"""Joining stores made from shards of one collection."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from covid_cmsf.atomic import atomic_path, write_text_atomic
from covid_cmsf.clips.manifest import ClipRecord, Failure, write_failures, write_manifest, write_split
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.clips.store_info import StoreInfo, clip_path, info_text


def merge_stores(
    stores: Sequence[ClipStore], out: Path, *, on_video: Callable[[], None] = lambda: None
) -> tuple[int, int]:
    """Makes `out` from the stores, which stay as they are. Files are hard links where the disk allows, else copies.

    Returns how many files were linked and how many copied. Differing settings, labels or contents are errors. The
    tables are written last, so an interrupted merge is no store yet and can be run again.
    """
    if (out / "manifest.csv").exists():
        raise FileExistsError(f"{out} already is a finished store; choose another --out")
    first = stores[0]
    for store in stores[1:]:
        _check_alike(first, store)
    _check_labels(stores)
    records: dict[str, ClipRecord] = {}
    origin: dict[str, ClipStore] = {}
    for store in stores:
        for record in store.records:
            if records.setdefault(record.video_id, record) != record:
                raise ValueError(f"{record.video_id!r} differs between {origin[record.video_id].path} and {store.path}")
            origin.setdefault(record.video_id, store)
    linked, copied = 0, 0
    for video_id, store in origin.items():
        for modality in store.info.modalities:
            if _place(clip_path(store.path, modality, video_id), clip_path(out, modality, video_id)):
                linked += 1
            else:
                copied += 1
        on_video()
    failures: dict[str, Failure] = {failure.video_id: failure for store in stores for failure in store.failures}
    (out / "splits").mkdir(parents=True, exist_ok=True)
    for name in sorted({name for store in stores for name in store.splits}):
        merged = {key: part for store in stores for key, part in store.splits.get(name, {}).items()}
        write_split(out / "splits" / f"{name}.csv", merged)
    write_failures(out / "failures.csv", (f for f in failures.values() if f.video_id not in records))
    write_text_atomic(out / "store.json", info_text(_joined_info(stores)))
    write_manifest(out / "manifest.csv", records.values())
    return linked, copied


def _check_alike(first: ClipStore, other: ClipStore) -> None:
    was, now = (store.info.model_dump(exclude={"software": True, "flow": {"version"}}) for store in (first, other))
    for key in was:
        if was[key] != now[key]:
            raise ValueError(f"{first.path} and {other.path} differ in {key}: {was[key]!r} and {now[key]!r}")


def _check_labels(stores: Sequence[ClipStore]) -> None:
    """One label a class and one class a label, over all stores."""
    labels: dict[str, int] = {}
    names: dict[int, str] = {}
    for store in stores:
        for record in store.records:
            label, name = record.label, record.class_name
            if labels.setdefault(name, label) != label or names.setdefault(label, name) != name:
                raise ValueError(
                    f"class {name!r} has label {label} in {store.path}, which does not fit the stores before it: "
                    "were the shards made from the same collection?"
                )


def _joined_info(stores: Sequence[ClipStore]) -> StoreInfo:
    """The first store's settings, with every version of the flow software that was used."""
    info = stores[0].info
    if info.flow is None:
        return info
    versions = dict.fromkeys(v for store in stores if store.info.flow for v in store.info.flow.version.split(" | "))
    return info.model_copy(update={"flow": info.flow.model_copy(update={"version": " | ".join(versions)})})


def _place(source: Path, target: Path) -> bool:
    """Puts `source` at `target` as well; True if as a hard link."""
    if not source.is_file():
        raise FileNotFoundError(f"{source} is missing; `covid-cmsf clips check` lists all faults of a store")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
        return True
    except OSError:  # another disk, or one without hard links: copying gives the same result
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
        return False
