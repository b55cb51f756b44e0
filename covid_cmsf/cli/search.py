"""`covid-cmsf search`: which of my videos are alike? None of it needs labels."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covid_cmsf.cli import search_collection, search_page
from covid_cmsf.cli.cluster import with_engine
from covid_cmsf.cli.options import (
    Device,
    Force,
    Json,
    Processes,
    Windows,
    Workers,
    interrupt_on_sigterm,
    report_skipped,
)
from covid_cmsf.cli.search_collection import Csv, Index, SearchModality, StoreOption
from covid_cmsf.cli.tables import print_rows

if TYPE_CHECKING:
    from covid_cmsf.search.encoders.base import IndexEncoder
    from covid_cmsf.search.find import FoundVideo, Query
    from covid_cmsf.search.index import SearchIndex

app = typer.Typer(
    help="Search over videos: similar videos and moments, copies, clusters. Needs no labels.", no_args_is_help=True
)
Fuse = Annotated[
    str | None,
    typer.Option(
        "--fuse",
        metavar="NAME=WEIGHT,...",
        help="What `fused` adds, and with which weights: image=1,motion=0.3. The others are left out.",
        show_default=False,
    ),
]


@app.command()
@with_engine
def index(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="PROJECT|FEATURES...|CLIPS|VIDEOS",
            help="A project, features files (one per modality), a clip store, or a folder of video files.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write; default: that of the project.", show_default=False),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option("--weights", help="An encoder per modality: run folders or weights files.", show_default=False),
    ] = None,
    windows: Windows = None,
    fuse: Fuse = None,
    clips: StoreOption = None,
    update: bool = typer.Option(False, "--update", help="Add the videos that the index does not have yet."),
    faiss: bool = typer.Option(False, "--faiss", help="Also for approximate search, above a million windows."),
    workers: Workers = 0,
    device: Device = "auto",
    processes: Processes = None,
    force: Force = False,
) -> None:
    """Build an index: of features files, or of videos and the weights of encoders. The same command resumes.

    \b
    covid-cmsf search index VIDEOS --weights runs/rgb --weights runs/flow -o index
    covid-cmsf search index VIDEOS --update -o index
    covid-cmsf search index rgb.features flow.features -o index
    """
    from covid_cmsf.logs import progress_bar
    from covid_cmsf.search.build import (
        Extraction,
        Skipped,
        add_to_index,
        index_features,
        index_videos,
        is_index_of,
        is_same_index,
    )
    from covid_cmsf.search.encoders import open_encoder
    from covid_cmsf.search.index import save_index
    from covid_cmsf.search.project import (
        CLIPS_FOLDER,
        FEATURES_FOLDER,
        INDEX_FILE,
        INDEX_FOLDER,
        index_folder,
        is_project,
    )
    from covid_cmsf.search.weights import parse_weights
    from covid_cmsf.training.run_dir import lock_dir

    source, is_features = sources[0], sources[0].is_file()
    if is_project(source):
        out = source / INDEX_FOLDER if out is None else out
        found = sorted((source / FEATURES_FOLDER).glob("*.features"))
        clips, source = source / CLIPS_FOLDER if clips is None else clips, source / CLIPS_FOLDER
        sources, is_features = (found, True) if found and not (weights or update) else ([source], False)
    if out is None:
        raise ValueError("--out INDEX is missing: the folder to write")
    missing = next((path for path in sources if not path.exists()), None)
    if missing is not None:
        raise FileNotFoundError(f"no features file, clip store or folder of videos {missing}")
    if not is_features and len(sources) > 1:
        raise ValueError(f"{len(sources)} sources: give one folder, or features files only")
    fusion = None if fuse is None else parse_weights(fuse)
    extraction = Extraction(device=device, num_processes=processes, num_workers=workers, progress=progress_bar)
    if update:
        if is_features or weights or windows or fuse:
            raise ValueError(
                "--update takes a folder of videos or clips only; the index has its own encoders and weights"
            )
        with lock_dir(index_folder(out)), interrupt_on_sigterm():
            added, unreadable = add_to_index(out, source, extraction=extraction)
        typer.echo(f"{out}: {added} videos added")
        _add_faiss(out, faiss)
        report_skipped(unreadable)
        return
    is_new = not out.exists() or _is_unfinished(out)  # in this order: another process may complete it meanwhile
    is_index = (out / INDEX_FILE).is_file()
    if not (is_index or is_new):
        raise FileExistsError(f"{out} exists, and is no index; choose another folder")
    if is_features and windows:
        raise ValueError("--windows is for videos; features files have their windows already")
    if not is_features and not weights:
        raise ValueError(f"{source} is no features file: --weights says which encoders embed its videos")
    encoders = [open_encoder(one, num_windows=windows) for one in weights or []]
    built, kept = None, {encoder.name: encoder for encoder in encoders}
    if is_features:
        built, kept = index_features(sources, clips=clips, encoders=encoders, weights=fusion)
    if is_index and not force:
        same = is_index_of(out, source, encoders, weights=fusion) if built is None else is_same_index(out, built)
        if not same:
            raise FileExistsError(
                f"{out / INDEX_FILE} exists, of other, or changed, videos or of other encoders; --force replaces it, "
                "--update adds new videos"
            )
        typer.echo(f"{out}: already there, nothing to do")
        _add_faiss(out, faiss)
        return
    out.mkdir(parents=True, exist_ok=True)
    skipped: Skipped = ()
    with lock_dir(out), interrupt_on_sigterm():
        if built is not None:
            save_index(out, built, kept)
        else:
            built, skipped = index_videos(source, encoders, out, weights=fusion, extraction=extraction)
    _describe(out, built, kept)
    _add_faiss(out, faiss)
    report_skipped(skipped)


def _is_unfinished(folder: Path) -> bool:
    """Whether a folder has nothing but what an interrupted `search index` left there."""
    if not folder.is_dir():
        return False
    # Interrupted while the files of a complete index were moved to their place.
    was_moving = any((folder / ".new").glob("*"))
    return was_moving or all(path.name.startswith(".") for path in folder.iterdir())


def _describe(out: Path, built: "SearchIndex", encoders: "dict[str, IndexEncoder]") -> None:
    windows = ", ".join(f"{len(one.videos)} windows of {name}" for name, one in built.windows.items())
    typer.echo(f"{out}: {len(built.videos)} videos, {windows}")
    if without := [name for name in built.windows if name not in encoders]:
        typer.echo(f"no weights of {', '.join(without)} found: queries by video files need them (--weights)", err=True)


def _add_faiss(out: Path, wanted: bool) -> None:
    """Write what approximate search needs, and print the recall that it loses."""
    from covid_cmsf.search.approximate import TOP, WORTHWHILE, ApproximateSearch, measure_recall
    from covid_cmsf.search.index import load_index

    if not wanted:
        return
    approximate = ApproximateSearch.build(load_index(out))
    recall = measure_recall(approximate)
    approximate.save(out, recall=recall)
    typer.echo(f"faiss finds {100 * recall:.1f} % of the exact {TOP} nearest videos")
    if all(len(one.videos) < WORTHWHILE for one in approximate.index.windows.values()):
        typer.echo(f"below {WORTHWHILE:,} windows exact search, the default, is fast enough", err=True)


@app.command()
def query(
    folder: Index,
    video: str = typer.Argument(..., help="A video file, the id of an indexed video, or a part that only its id has."),
    start: float | None = typer.Option(None, "--start", min=0, help="Seconds: only the query from here on."),
    end: float | None = typer.Option(None, "--end", min=0, help="Seconds: only the query before."),
    top: int = typer.Option(20, "--top", min=1, help="Number of videos."),
    modality: SearchModality = "fused",
    fuse: Fuse = None,
    as_json: Json = False,
    as_csv: Csv = False,
    html: Path | None = typer.Option(None, "--html", help="Also write a page with pictures.", show_default=False),
    clips: StoreOption = None,
    faiss: bool = typer.Option(False, "--faiss", help="Approximate search; the index must have been built so."),
) -> None:
    """Print the videos that are most like a video, or like a part of it, and where.

    The columns of the modalities say how alike they find a video; `found by` is the one that would list it first.

    \b
    covid-cmsf search query index dance/v_01 --start 12.5 --end 15 --top 5
    covid-cmsf search query index my.mp4 --html results.html
    covid-cmsf search query index my.mp4 --fuse image=1,motion=0.5
    """
    from covid_cmsf.search.approximate import ApproximateSearch
    from covid_cmsf.search.find import find_videos, open_query
    from covid_cmsf.search.index import load_index
    from covid_cmsf.search.weights import parse_weights

    if fuse is not None and modality != "fused":
        raise ValueError(f"--fuse is for --modality fused, not for {modality}")
    fusion = None if fuse is None else parse_weights(fuse)
    if html is not None and not html.parent.is_dir():
        raise FileNotFoundError(f"no folder {html.parent} to write {html.name} into")
    opened = load_index(folder)
    opened = opened if fusion is None else replace(opened, weights=fusion)
    approximate = ApproximateSearch.load(folder, opened) if faiss else None
    asked = open_query(opened, video, start=start, end=end, modality=modality)
    found = find_videos(opened, asked, top=top, modality=modality, approximate=approximate)
    rows = [
        {
            "video": one.video_id,
            "score": round(one.score, 4),
            "start": round(one.start, 2),
            "end": round(one.end, 2),
            **{name: round(value, 4) for name, value in one.by_modality.items()},
            "found by": one.found_by,
        }
        for one in found
    ]
    if html is not None:
        _write_page(html, folder, opened, asked, found, modality, clips)
    print_rows(rows, f"most like {asked.name}", as_json=as_json, as_csv=as_csv)


def _write_page(
    path: Path,
    folder: Path,
    opened: "SearchIndex",
    asked: "Query",
    found: "list[FoundVideo]",
    modality: str,
    clips: Path | None,
) -> None:
    from covid_cmsf.search.build import open_pictures
    from covid_cmsf.search.files import query_pictures
    from covid_cmsf.search.result_page import make_strip, write_results

    needed = {one.video_id for one in found} | ({asked.name} if asked.file is None else set())
    pictures = open_pictures(folder, needed.__contains__, clips=clips)
    records = {} if pictures is None else {one.video_id: one for one in pictures.records if one.video_id in needed}

    def strip(video_id: str, start: float, end: float) -> bytes | None:
        record = records.get(video_id)
        if record is None or pictures is None:
            return None
        rate = opened.videos[opened.find(video_id)].fps or 1.0
        return make_strip(pictures, record, round(start * rate), round(end * rate))

    first = found[0] if found else None
    begin, finish = (first.query_start, first.query_end) if first else (0.0, 1.0)
    if asked.file is None:
        query_strip = strip(asked.name, begin, finish)
    else:
        own, record = query_pictures(asked.file)
        query_strip = make_strip(own, record, round(begin * asked.fps), round(finish * asked.fps))
    write_results(
        path,
        query=asked.name,
        modality=modality,
        query_strip=query_strip,
        found=[(one, strip(one.video_id, one.start, one.end)) for one in found],
    )
    typer.echo(f"{path}: {len(found)} results", err=True)


app.command()(search_collection.duplicates)
app.command()(search_collection.clusters)
app.command()(search_page.page)
app.command()(search_page.serve)
