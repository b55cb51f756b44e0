"""Write the RGB videos of a clip store for other tools: WebDataset's shards, or a folder for Hugging Face `datasets`.

The files are those of the store, byte for byte. What is written follows from the store alone: no times, no user names,
and an order that does not depend on the machine.
"""

import hashlib
import io
import json
import shutil
import tarfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from covid_cmsf.clips.records import ClipRecord, clip_path
from covid_cmsf.clips.store import ClipStore, verify_clip
from covid_cmsf.files import fsync_dir
from covid_cmsf.logs import format_bytes

FOLDERS = {"train": "train", "val": "validation", "test": "test"}  # the names that `datasets` knows splits by
METADATA = "metadata.jsonl"
CARD = "README.md"


@dataclass(frozen=True)
class ExportSummary:
    """How many videos were written per subset, and how many are in no subset of the split."""

    subsets: dict[str, int]
    num_left_out: int
    num_files: int


def export_clips(
    store: ClipStore,
    out: Path,
    *,
    to: str,
    split: str = "1",
    shard_size: int = 1000,
    on_video: Callable[[], None] = lambda: None,
) -> ExportSummary:
    """Write the videos of a split to the new folder `out`, which appears when it is complete.

    Args:
        store: a store with RGB.
        out: folder to write.
        to: webdataset or huggingface.
        split: name of the split whose subsets are written; videos in none of them are left out.
        shard_size: videos per shard of WebDataset.
        on_video: called after every video.
    """
    writers: dict[str, Callable[[Path, str, Sequence[ClipRecord]], Iterator[None]]] = {
        "webdataset": lambda folder, subset, records: _write_shards(store, folder, subset, records, shard_size),
        "huggingface": lambda folder, subset, records: _write_video_folder(store, folder, subset, records),
    }
    if to not in writers:
        raise ValueError(f"unknown format {to!r}; choose from {', '.join(writers)}")
    if "rgb" not in store.modalities:
        raise ValueError(f"{store.path} has no RGB to export; it has {', '.join(store.modalities)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} already exists and is not empty; choose another --out")
    chosen = _choose(store, split)
    _check_space(store, out, [record for records in chosen.values() for record in records])
    temporary = out.with_name(f".{out.name}.{uuid.uuid4().hex}.tmp")
    temporary.mkdir(parents=True)
    try:
        for subset, records in chosen.items():
            for _ in writers[to](temporary, subset, records):
                on_video()
        if to == "huggingface":
            (temporary / CARD).write_bytes(_encode(_card(chosen)))
        num_files = sum(path.is_file() for path in temporary.rglob("*"))
        if out.exists():
            out.rmdir()
        temporary.rename(out)
        fsync_dir(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    counts = {subset: len(records) for subset, records in chosen.items()}
    return ExportSummary(counts, len(store.records) - sum(counts.values()), num_files)


def _choose(store: ClipStore, split: str) -> dict[str, list[ClipRecord]]:
    """Return the videos of each subset, in a fixed random order: neighbors in a shard are not of one class."""
    if split not in store.splits:
        raise ValueError(f"no split {split!r}; {store.path} has splits: {', '.join(store.splits) or 'none'}")
    subset_of = store.splits[split]
    records = sorted(store.records, key=lambda record: hashlib.sha256(_encode(record.video_id)).digest())
    chosen = {subset: [r for r in records if subset_of.get(r.video_id) == subset] for subset in FOLDERS}
    chosen = {subset: found for subset, found in chosen.items() if found}
    if not chosen:
        raise ValueError(f"{store.path} has no video in split {split!r}")
    return chosen


def _check_space(store: ClipStore, out: Path, records: Sequence[ClipRecord]) -> None:
    """Raise ValueError before anything is written if the disk has too little space."""
    needed = sum(clip_path(store.path, "rgb", record.video_id).stat().st_size for record in records)
    folder = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    if (free := shutil.disk_usage(folder).free) < needed:
        raise ValueError(f"{out} needs {format_bytes(needed)}, but {folder} has {format_bytes(free)} free")


def _read_clip(store: ClipStore, record: ClipRecord) -> bytes:
    """Return the bytes of a video's RGB file; ValueError if it is not the one that was written."""
    path = clip_path(store.path, "rgb", record.video_id)
    try:
        verify_clip(path, record, "rgb")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; `covid-cmsf clips check` finds all damaged files") from error
    return path.read_bytes()


def _describe(record: ClipRecord, subset: str) -> dict[str, Any]:
    """Return what is known about a video; the first four keys are those that `preprocess` reads."""
    return {
        "id": record.video_id,
        "label": record.class_name or None,
        "source": record.source,
        "subset": subset,
        "label_number": record.label if record.label >= 0 else None,
        "num_frames": record.num_frames,
        "fps": record.fps,
        "width": record.width,
        "height": record.height,
    }


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# WebDataset


def _write_shards(
    store: ClipStore, folder: Path, subset: str, records: Sequence[ClipRecord], size: int
) -> Iterator[None]:
    """Write <subset>-000000.tar, ...; a sample is <key>.mp4, <key>.json and, with a label, <key>.cls."""
    for start in range(0, len(records), size):
        with tarfile.open(folder / f"{subset}-{start // size:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as shard:
            for number, record in enumerate(records[start : start + size], start=start):
                members = {"json": (json.dumps(_describe(record, subset), sort_keys=True) + "\n").encode()}
                if record.label >= 0:
                    members["cls"] = str(record.label).encode()
                members["mp4"] = _read_clip(store, record)
                for ending, data in members.items():
                    entry = tarfile.TarInfo(f"{subset}-{number:09d}.{ending}")  # mode 644, time and owner 0
                    entry.size = len(data)
                    shard.addfile(entry, io.BytesIO(data))
                yield


# Hugging Face


def _write_video_folder(store: ClipStore, folder: Path, subset: str, records: Sequence[ClipRecord]) -> Iterator[None]:
    """Write <split>/metadata.jsonl and the videos below <split>/ under their ids."""
    split = folder / FOLDERS[subset]
    split.mkdir()
    with (split / METADATA).open("w", encoding="utf-8", newline="\n") as metadata:
        for record in records:
            name = PurePosixPath(f"{record.video_id}.mp4")
            (split / name).parent.mkdir(parents=True, exist_ok=True)
            (split / name).write_bytes(_read_clip(store, record))
            metadata.write(json.dumps({"file_name": name.as_posix(), **_describe(record, subset)}) + "\n")
            yield


def _card(chosen: Mapping[str, Sequence[ClipRecord]]) -> str:
    """Return a README.md with counts; nothing of this machine."""
    counts = "".join(f"| {FOLDERS[subset]} | {len(records)} |\n" for subset, records in chosen.items())
    classes = sorted({(r.label, r.class_name) for records in chosen.values() for r in records if r.label >= 0})
    names = "".join(f"| {label} | {name.replace('|', '&#124;')} |\n" for label, name in classes)
    table = f"\n| label_number | label |\n|---|---|\n{names}" if names else "\nThe videos have no labels.\n"
    # Without `configs` the word test in a file's name would make it part of that split.
    files = "".join(f"  - split: {FOLDERS[subset]}\n    path: {FOLDERS[subset]}/**\n" for subset in chosen)
    return (
        "---\ntask_categories:\n- video-classification\n"
        f"configs:\n- config_name: default\n  data_files:\n{files}---\n\n# Videos of a clip store\n\n"
        "Written by `covid-cmsf clips export --to huggingface`. `source` names footage that several clips share: keep "
        "it on one side of every split.\n\n"
        f"| split | videos |\n|---|---|\n{counts}{table}"
    )
