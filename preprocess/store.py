"""Write a clip store: its settings, the ledger of outcomes, and the tables made from the ledger.

The ledger, below `<store>/.work/`, has one small file per video, written once. The tables (manifest.csv, failures.csv,
splits/) are made from it by one process at a time, and can be made again at any time.
"""

import hashlib
import json
import logging
import os
import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from covid_cmsf.clips.names import check_video_ids
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
from covid_cmsf.config import config_differences
from covid_cmsf.files import fsync_dir, write_text_atomic
from preprocess.layouts import Collection

logger = logging.getLogger(__name__)


def prepare_store(store: Path, info: StoreInfo) -> StoreInfo:
    """Write store.json if there is none, else check that its settings are the same; return its content.

    Different settings are a ValueError that lists them. Another version of the flow software is only added to
    store.json and logged: values may differ slightly (OpenCV 4.12 against 5.0: 0.009 px on average).
    """
    if store.exists() and not store.is_dir():
        raise NotADirectoryError(f"{store} is a file; --out needs a folder")
    if store.is_dir() and not (store / "store.json").exists() and _has_other_files(store):
        raise FileExistsError(f"{store} has files but is not a clip store; choose an empty or new folder for --out")
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
    if old.format != new.format:
        raise ValueError(
            f"{store} has format {old.format}: its flow has other levels than this version writes. It can be read as "
            "it is; use another --out for new videos"
        )
    changed = config_differences(old.model_dump(mode="json"), new.model_dump(mode="json"))
    differences = [
        f"{key} is {old_value!r} in the store, {new_value!r} now"
        for key, (old_value, new_value) in changed.items()
        if key not in ("software", "flow.version", "motion.version")
    ]
    if differences:
        raise ValueError(
            f"{store} was made with other settings: {'; '.join(differences)}. Use the same settings or another --out"
        )
    if old.flow is not None and new.flow is not None and new.flow.version not in old.flow.version.split(" | "):
        logger.warning("earlier flow was computed with %s, new flow with %s", old.flow.version, new.flow.version)
        flow_info = old.flow.model_copy(update={"version": f"{old.flow.version} | {new.flow.version}"})
        old = old.model_copy(update={"flow": flow_info})
        write_text_atomic(store / "store.json", info_to_json(old))
    return old


def video_key(video_id: str) -> str:
    """Return a hash of the id, which is a valid file name on every file system."""
    return hashlib.sha256(video_id.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _values_sha256(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode("ascii")).hexdigest()


class Ledger:
    """The outcomes of a store's videos: at most one ClipRecord or Failure per video; the first one written stays.

    A file is read once per process: later listings read only files that are new or were replaced since.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int], ClipRecord | Failure]] = {}  # {file name: (stamp, outcome)}

    def outcome(self, video_id: str) -> ClipRecord | Failure | None:
        """Return the outcome of a video; None if it has none yet."""
        return self._read(self._path(video_id))

    def write(self, outcome: ClipRecord | Failure) -> bool:
        """Write an outcome and flush it to disk; return False if there is one already, which is kept."""
        path = self._path(outcome.video_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("w", encoding="ascii") as file:
                values = {type(outcome).__name__: asdict(outcome)}
                json.dump({**values, "sha256": _values_sha256(values)}, file)
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
        """Remove an outcome, so that the video is converted again."""
        self._path(video_id).unlink(missing_ok=True)

    def outcomes(self) -> list[ClipRecord | Failure]:
        """Return all outcomes, ordered by file name."""
        known: dict[str, tuple[tuple[int, int], ClipRecord | Failure]] = {}
        for folder in sorted(self._folder.glob("??")):
            with os.scandir(folder) as entries:
                files = sorted((entry for entry in entries if entry.name.endswith(".json")), key=lambda one: one.name)
            for entry in files:
                if (found := self._read_if_new(entry)) is not None:
                    known[entry.name] = found
        self._known = known
        return [outcome for _, outcome in known.values()]

    def _read_if_new(self, entry: "os.DirEntry[str]") -> tuple[tuple[int, int], ClipRecord | Failure] | None:
        """Return the stamp and outcome of a file, from memory if it was read before; None if it is gone."""
        try:
            stat = entry.stat()
        except FileNotFoundError:
            return None
        stamp = (stat.st_ino, stat.st_mtime_ns)
        known = self._known.get(entry.name)
        if known is not None and known[0] == stamp:
            return known
        outcome = self._read(Path(entry.path))
        return None if outcome is None else (stamp, outcome)

    def _path(self, video_id: str) -> Path:
        key = video_key(video_id)
        return self._folder / key[:2] / f"{key}.json"

    @staticmethod
    def _read(path: Path) -> ClipRecord | Failure | None:
        try:
            values = json.loads(path.read_text(encoding="ascii"))
            expected = values.pop("sha256", None)  # None: written by version 0.1.0
            if expected not in (None, _values_sha256(values)):
                raise ValueError("its content does not have its SHA-256")
            outcome = ClipRecord(**values["ClipRecord"]) if "ClipRecord" in values else Failure(**values["Failure"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error}); remove it, and its video is converted again") from None
        check_video_ids([outcome.video_id], path)
        return outcome


# Tables. Not safe for several processes at once: hold the lease `tables`.


def import_tables(store: Path, ledger: Ledger, marker: Path) -> None:
    """Fill the ledger from the tables of a merged store, or of one whose .work was removed.

    Runs once per store: the file `marker` is created at the end.
    """
    manifest = store / "manifest.csv"
    if manifest.is_file() and not marker.exists():
        for record in read_manifest(manifest):
            ledger.write(record)
        for failure in read_failures(store / "failures.csv"):
            ledger.write(failure)
    marker.touch()


def check_label_conflicts(ledger: Ledger, collection: Collection) -> None:
    """Raise ValueError if a label means one class in the store and another one in this collection."""
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
    """Write all tables from the ledger; return the failures."""
    records, failures = merge_outcomes(ledger, collection)
    write_splits(store, collection)
    write_failures(store / "failures.csv", failures)
    write_manifest(store / "manifest.csv", records)
    return failures


def merge_outcomes(ledger: Ledger, collection: Collection) -> tuple[list[ClipRecord], list[Failure]]:
    """Return records and failures with the collection's current labels and sources.

    Records of videos that the collection no longer has are kept, their failures are dropped.
    """
    videos = {video.video_id: video for video in collection.videos}
    labels = {video.class_name: video.label for video in collection.videos}
    records, failures = [], []
    for outcome in ledger.outcomes():
        video = videos.get(outcome.video_id)
        if isinstance(outcome, Failure):
            if video is not None:
                failures.append(outcome)
        elif video is not None:
            records.append(replace(outcome, source=video.source, class_name=video.class_name, label=video.label))
        else:
            records.append(replace(outcome, label=labels.get(outcome.class_name, outcome.label)))
    return records, failures


def write_splits(store: Path, collection: Collection) -> None:
    """Write splits/<name>.csv; rows of videos that the collection does not have are kept."""
    folder = store / "splits"
    folder.mkdir(exist_ok=True)
    for name, split in collection.splits.items():
        path = folder / f"{name}.csv"
        old = read_split(path) if path.exists() else {}
        write_split(path, {**old, **split})
