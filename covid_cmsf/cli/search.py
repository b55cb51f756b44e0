"""`covid-cmsf search`: which of my videos are alike? None of it needs labels."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covid_cmsf.cli.options import Force, Json, NewFolder, Seed

if TYPE_CHECKING:
    from covid_cmsf.search.index import SearchIndex

app = typer.Typer(
    help="Search over videos: similar videos and moments, copies, clusters. Needs no labels.", no_args_is_help=True
)

Index = Annotated[
    Path, typer.Argument(metavar="INDEX", help="A folder written by `covid-cmsf search index`.", show_default=False)
]
SearchModality = Annotated[str, typer.Option("--modality", help="rgb, flow, ..., or fused: the mean of all.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]
StoreOption = Annotated[
    Path | None, typer.Option("--clips", help="The clip store that the features come from.", show_default=False)
]


@app.command()
def index(
    features: Annotated[
        list[Path],
        typer.Argument(help="Files written by `covid-cmsf extract`, one per modality.", show_default=False),
    ],
    out: NewFolder,
    clips: StoreOption = None,
    force: Force = False,
) -> None:
    """Build an index from features files. With --clips, times are in seconds.

    \b
    covid-cmsf search index rgb.features flow.features --clips CLIPS -o index
    """
    from covid_cmsf.clips import open_clips
    from covid_cmsf.evaluation.features.file import load_features
    from covid_cmsf.search.index import build_index, save_index
    from covid_cmsf.search.project import INDEX_FILE

    if out.exists() and not ((out / INDEX_FILE).is_file() and force):
        hint = "--force replaces it" if (out / INDEX_FILE).is_file() else "choose another folder"
        raise FileExistsError(f"{out} exists; {hint}")
    loaded = {}
    for path in features:
        one = load_features(path)
        modality = one.provenance.eval_protocol.modality
        if modality in loaded:
            raise ValueError(f"{path}: another file has features of {modality} already; give one file per modality")
        loaded[modality] = one
    built = build_index(loaded, None if clips is None else open_clips(clips))
    save_index(out, built)
    windows = ", ".join(f"{len(one.videos)} windows of {name}" for name, one in built.windows.items())
    typer.echo(f"{out}: {len(built.videos)} videos, {windows}")


@app.command()
def query(
    folder: Index,
    video: str = typer.Argument(..., help="Id of an indexed video, or a part that only its id has."),
    start: float | None = typer.Option(None, "--start", help="Seconds: only windows that begin here or later."),
    end: float | None = typer.Option(None, "--end", help="Seconds: only windows that begin before."),
    top: int = typer.Option(20, "--top", min=1, help="Number of videos."),
    modality: SearchModality = "fused",
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Print the videos that are most like a video, or like a part of it, and where.

    \b
    covid-cmsf search query index dance/v_01 --start 12.5 --end 15 --top 5
    """
    from covid_cmsf.search.index import load_index
    from covid_cmsf.search.query import search, video_vectors

    opened = load_index(folder)
    number = opened.find(video)
    row = opened.videos[number]
    rate = row.fps if row.fps > 0 else 1.0
    first, last = (None if seconds is None else round(seconds * rate) for seconds in (start, end))
    vectors = video_vectors(opened, number, start=first, end=last)
    matches = search(opened, vectors, top=top, modality=modality, exclude=frozenset({number}))
    rows = [
        {
            "video": opened.videos[match.video].video_id,
            "score": round(match.score, 4),
            "start": round(opened.videos[match.video].seconds(match.start), 2),
            "end": round(opened.videos[match.video].seconds(match.end), 2),
            **{name: round(value, 4) for name, value in match.by_modality.items()},
        }
        for match in matches
    ]
    _print_rows(rows, f"most like {row.video_id}", as_json=as_json, as_csv=as_csv)


@app.command()
def duplicates(
    folder: Index,
    clips: Path = typer.Option(..., "--clips", help="The clip store of these videos.", show_default=False),
    shared: bool = typer.Option(False, "--shared", help="Also list videos that only share a part, such as an intro."),
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Print copies among the videos: re-encoded, cropped, mirrored, faster, slower, or part of a longer one.

    Embeddings propose pairs, the pictures of the store decide. `contained`: the second is a part of the first.

    \b
    covid-cmsf search duplicates index --clips CLIPS
    """
    from covid_cmsf.clips import open_clips
    from covid_cmsf.logs import progress_bar
    from covid_cmsf.search.duplicates import find_duplicates, group_copies, propose_pairs
    from covid_cmsf.search.index import load_index
    from covid_cmsf.search.thumbnails import read_thumbnails

    opened, store = load_index(folder), open_clips(clips)
    records = {record.video_id: record for record in store.records}
    missing = [video.video_id for video in opened.videos if video.video_id not in records]
    if missing:
        raise ValueError(f"{len(missing)} videos of {folder} are not in {clips}, for example {missing[0]!r}")
    pairs = propose_pairs(opened)
    with progress_bar("pairs", len(pairs)) as advance:
        found = find_duplicates(
            pairs,
            lambda number: read_thumbnails(store, records[opened.videos[number].video_id]),
            on_pair=advance,
        )
    rows = [
        {
            "kind": one.kind,
            "first": opened.videos[one.first].video_id,
            "second": opened.videos[one.second].video_id,
            "share": round(one.share, 2),
            "similarity": round(one.similarity, 2),
            "first_start": one.first_part[0],
            "first_end": one.first_part[1],
            "second_start": one.second_part[0],
            "second_end": one.second_part[1],
            "speed": round(one.speed, 2),
            "mirrored": one.mirrored,
        }
        for one in found
        if shared or one.kind != "shared"
    ]
    if not (as_json or as_csv):
        times = ("first_start", "first_end", "second_start", "second_end")
        rows = [
            {
                **{name: row[name] for name in ("kind", "first", "second", "share", "speed", "mirrored")},
                "seconds of both": "{}-{}, {}-{}".format(*(row[name] for name in times)),
            }
            for row in rows
        ]
    groups = group_copies(found)
    title = f"copies: {len(groups)} groups of {sum(map(len, groups))} videos"
    _print_rows(rows, title, as_json=as_json, as_csv=as_csv)


@app.command()
def clusters(
    folder: Index,
    number: int | None = typer.Option(None, "--number", min=1, help="Clusters; default: the best separated number."),
    modality: SearchModality = "fused",
    seed: Seed = 0,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Print groups of similar videos with their most typical ones. JSON and CSV have all videos and their outlier rank.

    \b
    covid-cmsf search clusters index --number 10
    """
    from covid_cmsf.search.clusters import cluster_videos
    from covid_cmsf.search.index import load_index

    opened = load_index(folder)
    clustering = cluster_videos(opened, modality=modality, num_clusters=number, seed=seed)
    if as_json or as_csv:
        nearness = dict(clustering.outliers)
        members = [
            {"cluster": count, "video": opened.videos[video].video_id, "similarity": round(nearness[video], 4)}
            for count, cluster in enumerate(clustering.clusters, start=1)
            for video in cluster.videos
        ]
        _print_rows(members, "", as_json=as_json, as_csv=as_csv)
        return
    rows = [
        {
            "cluster": count,
            "videos": len(cluster.videos),
            "cohesion": round(cluster.cohesion, 2),
            "most typical": ", ".join(opened.videos[video].video_id for video in cluster.videos[:3]),
        }
        for count, cluster in enumerate(clustering.clusters, start=1)
    ]
    _print_rows(rows, f"{len(rows)} clusters, separation {clustering.separation:.2f}", as_json=False, as_csv=False)
    typer.echo("unlike all others: " + _name_outliers(opened, clustering.outliers))


def _name_outliers(opened: "SearchIndex", outliers: tuple[tuple[int, float], ...]) -> str:
    return ", ".join(f"{opened.videos[video].video_id} ({value:.2f})" for video, value in outliers[:3])


def _print_rows(rows: list[dict[str, object]], title: str, *, as_json: bool, as_csv: bool) -> None:
    import csv
    import sys

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    if as_json:
        typer.echo(json.dumps(rows))
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif not rows:
        typer.echo(f"none ({title})")
    else:
        table = Table(title=escape(title))
        for name in rows[0]:
            table.add_column(name, overflow="fold")  # ids are never cut
        for row in rows:
            table.add_row(*(escape(str(value)) for value in row.values()))
        Console().print(table)
