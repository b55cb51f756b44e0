"""Creating a clip store, or making sure that an existing one was begun with the same settings."""

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from covid_cmsf.clips.records import (
    ClipRecord,
    Failure,
    StoreInfo,
    info_to_json,
    read_failures,
    read_manifest,
    read_split,
    read_store_info,
    write_failures,
    write_manifest,
    write_split,
)
from covid_cmsf.files import fsync_dir, write_text_atomic
from preprocess.layouts import Collection

logger = logging.getLogger(__name__)


def prepare_store(store: Path, info: StoreInfo) -> StoreInfo:
    """Writes store.json, exactly once whoever comes first; returns what it says.

    Settings that differ are an error that lists them. Another version of the flow software is noted in store.json
    and in the log: values may differ slightly (OpenCV 4.12 against 5.0: 0.009 px on average), files stay comparable.
    """
    if store.exists() and not store.is_dir():
        raise NotADirectoryError(f"{store} is a file; --out needs a folder")
    if store.is_dir() and not (store / "store.json").exists() and _has_other_files(store):
        raise FileExistsError(f"{store} has files but is no clip store; choose an empty or new folder for --out")
    store.mkdir(parents=True, exist_ok=True)
    temporary = store / f".{uuid.uuid4().hex}.new"
    try:
        temporary.write_text(info_to_json(info), encoding="utf-8")
        os.link(temporary, store / "store.json")
        return info
    except FileExistsError:
        return _check_same_config(store, read_store_info(store), info)
    finally:
        temporary.unlink(missing_ok=True)


def _has_other_files(store: Path) -> bool:
    return any(not path.name.startswith(".") for path in store.iterdir())


def _check_same_config(store: Path, old: StoreInfo, new: StoreInfo) -> StoreInfo:
    differences = [
        f"{key} is {old_value!r} in the store, {new_value!r} now"
        for key, old_value, new_value in _config_differences(old.model_dump(mode="json"), new.model_dump(mode="json"))
        if key not in ("software", "flow.version")
    ]
    if differences:
        raise ValueError(
            f"{store} was begun with other settings: {'; '.join(differences)}. Use the same settings or another --out"
        )
    if old.flow is not None and new.flow is not None and new.flow.version not in old.flow.version.split(" | "):
        logger.warning("flow so far was made with %s, from now on with %s", old.flow.version, new.flow.version)
        flow_info = old.flow.model_copy(update={"version": f"{old.flow.version} | {new.flow.version}"})
        old = old.model_copy(update={"flow": flow_info})
        write_text_atomic(store / "store.json", info_to_json(old))
    return old


def _config_differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[tuple[str, object, object]]:
    differences: list[tuple[str, object, object]] = []
    for key in sorted(old.keys() | new.keys()):
        old_value, new_value = old.get(key), new.get(key)
        if isinstance(old_value, dict) and isinstance(new_value, dict):
            differences += _config_differences(old_value, new_value, f"{prefix}{key}.")
        elif old_value != new_value:
            differences.append((prefix + key, old_value, new_value))
    return differences


# What has become of each video: one small file a video, written once, below `<store>/.work/`.
#
# The tables of the store (manifest.csv, failures.csv) are made from these, so they can be made again at any time.


def video_key(video_id: str) -> str:
    """A name for a video that every file system takes."""
    return hashlib.sha256(video_id.encode("utf-8", "surrogateescape")).hexdigest()[:32]


class Ledger:
    """The outcomes of a store's videos: a ClipRecord or a Failure each, at most one, whoever writes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def outcome(self, video_id: str) -> ClipRecord | Failure | None:
        """What has become of this video; None = nothing yet."""
        return self._read(self._path(video_id))

    def write(self, outcome: ClipRecord | Failure) -> bool:
        """Records an outcome, flushed to disk. False if there is one already (it stays)."""
        path = self._path(outcome.video_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("w", encoding="ascii") as file:
                json.dump({type(outcome).__name__: asdict(outcome)}, file)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # unlike a rename, this never replaces
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        fsync_dir(path.parent)
        return True

    def remove(self, video_id: str) -> None:
        """Removes an outcome, so that the video is done again."""
        self._path(video_id).unlink(missing_ok=True)

    def outcomes(self) -> Iterator[ClipRecord | Failure]:
        """All outcomes, in no particular order."""
        for path in self._folder.glob("??/*.json"):
            if (outcome := self._read(path)) is not None:
                yield outcome

    def _path(self, video_id: str) -> Path:
        key = video_key(video_id)
        return self._folder / key[:2] / f"{key}.json"

    @staticmethod
    def _read(path: Path) -> ClipRecord | Failure | None:
        try:
            values = json.loads(path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        if "ClipRecord" in values:
            return ClipRecord(**values["ClipRecord"])
        return Failure(**values["Failure"])


# The store's tables, made from the ledger: manifest.csv, failures.csv, splits/. For one process at a time.


def import_tables(store: Path, ledger: Ledger, marker: Path) -> None:
    """A merged store, or one whose .work was removed, has tables but no ledger: what they list stays done.

    Once a store: `marker` says that it is done, and is made last.
    """
    manifest = store / "manifest.csv"
    if manifest.is_file() and not marker.exists():
        for record in read_manifest(manifest):
            ledger.write(record)
        for failure in read_failures(store / "failures.csv"):
            ledger.write(failure)
    marker.touch()


def check_label_conflicts(ledger: Ledger, collection: Collection) -> None:
    """ValueError if the store has videos of other classes whose labels this collection uses too."""
    videos = {video.video_id for video in collection.videos}
    names = {video.label: video.class_name for video in collection.videos}
    for outcome in ledger.outcomes():
        if isinstance(outcome, ClipRecord) and outcome.video_id not in videos:
            name = names.get(outcome.label, outcome.class_name)
            if name != outcome.class_name and outcome.class_name not in names.values():
                raise ValueError(
                    f"the store has {outcome.video_id!r} with label {outcome.label}, which is {name!r} in this "
                    "collection; use another --out"
                )


def write_tables(store: Path, ledger: Ledger, collection: Collection) -> list[Failure]:
    """Brings the tables up to date; returns the failures."""
    records, failures = merge_outcomes(ledger, collection)
    write_splits(store, collection)
    write_failures(store / "failures.csv", failures)
    write_manifest(store / "manifest.csv", records)
    return failures


def merge_outcomes(ledger: Ledger, collection: Collection) -> tuple[list[ClipRecord], list[Failure]]:
    """Records and failures; labels and sources as the collection has them now. Videos that it no longer has stay."""
    videos = {video.video_id: video for video in collection.videos}
    labels = {video.class_name: video.label for video in collection.videos}
    records, failures = [], []
    for outcome in ledger.outcomes():
        video = videos.get(outcome.video_id)
        if isinstance(outcome, Failure):
            if video is not None:  # a video that was removed is no failure any more
                failures.append(outcome)
        elif video is not None:
            records.append(replace(outcome, source=video.source, class_name=video.class_name, label=video.label))
        else:
            records.append(replace(outcome, label=labels.get(outcome.class_name, outcome.label)))
    return records, failures


def write_splits(store: Path, collection: Collection) -> None:
    """splits/<name>.csv; rows of videos that the collection does not have (any more) are kept."""
    folder = store / "splits"
    folder.mkdir(exist_ok=True)
    for name, split in collection.splits.items():
        path = folder / f"{name}.csv"
        old = read_split(path) if path.exists() else {}
        write_split(path, {**old, **split})
