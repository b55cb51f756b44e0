"""The store's tables, made from the ledger: manifest.csv, failures.csv, splits/. For one process at a time."""

from dataclasses import replace
from pathlib import Path

from covid_cmsf.clips.manifest import (
    ClipRecord,
    Failure,
    read_failures,
    read_manifest,
    read_split,
    write_failures,
    write_manifest,
    write_split,
)
from preprocess.layouts import Collection
from preprocess.ledger import Ledger


def adopt_tables(store: Path, ledger: Ledger, mark: Path) -> None:
    """A merged store, or one whose .work was removed, has tables but no ledger: what they list stays done.

    Once a store: `mark` says that it is done, and is made last.
    """
    manifest = store / "manifest.csv"
    if manifest.is_file() and not mark.exists():
        for record in read_manifest(manifest):
            ledger.write(record)
        for failure in read_failures(store / "failures.csv"):
            ledger.write(failure)
    mark.touch()


def check_labels(ledger: Ledger, collection: Collection) -> None:
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
