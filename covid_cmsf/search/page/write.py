"""Write the page as a folder that opens from disk, without a server or network."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covid_cmsf import __version__
from covid_cmsf.clips import open_clips
from covid_cmsf.files import write_text_atomic
from covid_cmsf.pages.asset_files import copy_assets
from covid_cmsf.pages.data_scripts import write_data
from covid_cmsf.pages.thumbnails import ClipCollections, ThumbnailKey, ThumbnailSet, make_thumbnails
from covid_cmsf.search.duplicates import Duplicate
from covid_cmsf.search.index import SearchIndex, load_index
from covid_cmsf.search.page.copies import find_copies
from covid_cmsf.search.page.data import (
    cluster_values,
    duplicate_values,
    index_values,
    map_values,
    probe_values,
    video_values,
)
from covid_cmsf.search.page.neighbors import TOP, Results, all_neighbors

PACKAGE = "covid_cmsf.search.page"
PAGE_FILE = "page.json"  # marks a folder as a page
SHARD = 250  # videos per file of neighbors
KINDS = ("rgb", "flow")
Data = dict[str, Any]


@dataclass(frozen=True)
class WrittenPage:
    """What `write_page` has written."""

    path: Path  # index.html
    num_videos: int
    num_bytes: int
    picture_bytes: int
    notes: tuple[str, ...]


def write_page(
    index: Path | str,
    clips: Path | str | None,
    out: Path | str,
    *,
    top: int = TOP,
    megabytes: float = 100.0,
    duplicates: bool = True,
    num_clusters: int | None = None,
    umap: bool = True,
    workers: int = 2,
) -> WrittenPage:
    """Write the page of an index; an existing page is written again, and only new pictures are made.

    Args:
        index: folder of the index.
        clips: the clip store behind it, for pictures and copies; None: a page without them.
        out: folder to write.
        top: neighbors per video.
        megabytes: limit of the pictures; they get coarser to fit, and the last ones are left out.
        duplicates: whether to look for copies, which compares pictures and takes a while.
        num_clusters: by every modality; None: the best separated number.
        umap: whether to make a UMAP map too, if umap-learn is installed.
        workers: threads that make pictures.
    """
    index, out = Path(index), Path(out)
    opened = load_index(index)
    prepare_folder(out)
    copy_assets(out, PACKAGE)
    notes: list[str] = []
    pictures = ThumbnailSet("")
    if clips is not None:
        collections = ClipCollections()
        pictures = make_thumbnails(
            _wanted(opened, str(clips)), collections, out / "pictures", budget=megabytes * 1e6, workers=workers
        )
        notes += _notes(pictures, collections)
    copies = find_copies(index, opened, open_clips(clips)) if clips is not None and duplicates else None
    files = _files(opened, pictures, str(clips), copies, top=top, num_clusters=num_clusters, umap=umap, notes=notes)
    write_data(out / "data", files)
    sizes = {path: path.stat().st_size for path in out.rglob("*") if path.is_file()}
    picture_bytes = sum(size for path, size in sizes.items() if path.suffix == ".webp")
    written = WrittenPage(out / "index.html", len(opened.videos), sum(sizes.values()), picture_bytes, tuple(notes))
    _mark(out, {"videos": written.num_videos, "bytes": written.num_bytes, "notes": notes})
    return written


def prepare_folder(out: Path) -> None:
    """Create the folder and mark it as a page; ValueError if it exists and is something else."""
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; --out must be a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / PAGE_FILE).is_file():
        raise ValueError(f"{out} is not empty and not a page; give --out a new folder")
    out.mkdir(parents=True, exist_ok=True)
    _mark(out, {"unfinished": True})
    for name in ("assets", "data", "pictures"):
        (out / name).mkdir(exist_ok=True)


def page_values(index: SearchIndex, **values: Any) -> Data:
    """Return the data that the page reads first; `live` says whether a server answers it."""
    return {
        "software": f"covid-cmsf {__version__}",
        "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        **index_values(index),
        **values,
    }


def _files(
    index: SearchIndex,
    pictures: ThumbnailSet,
    clips: str,
    copies: list[Duplicate] | None,
    *,
    top: int,
    num_clusters: int | None,
    umap: bool,
    notes: list[str],
) -> Iterator[tuple[str, Any]]:
    first = page_values(index, live=False, top=top, shard=SHARD, copies=copies is not None, notes=notes)
    first["methods"] = [name for name in first["methods"] if umap or name != "umap"]
    first["kinds"] = [kind for kind in KINDS if any(key.modality == kind for key in pictures.made)]
    first["pictures"] = f"pictures/{pictures.folder}"
    yield "page", first
    yield "videos", video_values(index)
    for choice in first["choices"]:
        for method in first["methods"]:
            yield f"map-{choice}-{method}", map_values(index, choice, method)
        if len(index.videos) > 1:
            yield f"clusters-{choice}", cluster_values(index, choice, number=num_clusters)
    yield "probe", probe_values(index)
    yield "saved", {"labels": {}, "decisions": []}
    yield "copies", duplicate_values(copies or [])
    for kind in first["kinds"]:
        keys = [ThumbnailKey(clips, video.video_id, kind) for video in index.videos]
        yield f"pictures-{kind}", [pictures.made.get(key, "") for key in keys]
    shard: dict[str, list[Data]] = {choice: [] for choice in first["choices"]}
    for number, by_choice in enumerate(all_neighbors(index, top=top), start=1):
        for choice, results in by_choice.items():
            shard[choice].append(_compact(results))
        if number % SHARD == 0 or number == len(index.videos):
            for choice, rows in shard.items():
                yield f"neighbors-{choice}-{(number - 1) // SHARD}", rows
            shard = {choice: [] for choice in first["choices"]}


def _compact(results: Results) -> Data:
    """Scores in thousandths: half the size."""
    by = {name: [None if value is None else round(1000 * value) for value in one] for name, one in results.by.items()}
    return {**results.values(), "scores": [round(1000 * value) for value in results.scores], "by": by}


def _wanted(index: SearchIndex, clips: str) -> list[ThumbnailKey]:
    return [ThumbnailKey(clips, video.video_id, kind) for kind in KINDS for video in index.videos]


def _notes(pictures: ThumbnailSet, opened: ClipCollections) -> list[str]:
    notes = [f"no pictures: {reason}" for reason in opened.reasons.values()]
    if pictures.num_omitted:
        notes.append(f"{pictures.num_omitted} pictures do not fit into --megabytes")
    if pictures.failures:
        notes.append(f"{len(pictures.failures)} pictures could not be made, for example {pictures.failures[0]}")
    return notes


def _mark(out: Path, values: Data) -> None:
    write_text_atomic(out / PAGE_FILE, json.dumps({"software": f"covid-cmsf {__version__}", **values}, indent=1) + "\n")
