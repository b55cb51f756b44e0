"""`covid-cmsf search duplicates` and `search clusters`: what is in a collection of videos?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covid_cmsf.cli.options import Json, Seed
from covid_cmsf.cli.tables import print_rows

if TYPE_CHECKING:
    from covid_cmsf.search.index import SearchIndex

Index = Annotated[
    Path,
    typer.Argument(
        metavar="INDEX", help="A folder written by `covid-cmsf search index`, or a project.", show_default=False
    ),
]
SearchModality = Annotated[str, typer.Option("--modality", help="rgb, flow, ..., or fused: all of them.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]
StoreOption = Annotated[
    Path | None,
    typer.Option("--clips", help="The clip store of the videos; default: where it was.", show_default=False),
]


def duplicates(
    folder: Index,
    clips: StoreOption = None,
    shared: bool = typer.Option(False, "--shared", help="Also list videos that only share a part, such as an intro."),
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Print copies among the videos: re-encoded, cropped, mirrored, faster, slower, or part of a longer one.

    Embeddings propose pairs, the pictures decide. `contained`: the second is a part of the first.

    \b
    covid-cmsf search duplicates index
    """
    from covid_cmsf.logs import progress_bar
    from covid_cmsf.search.build import open_pictures
    from covid_cmsf.search.duplicates import group_copies, search_duplicates
    from covid_cmsf.search.index import load_index
    from covid_cmsf.search.thumbnails import read_thumbnails

    opened = load_index(folder)
    wanted = {video.video_id for video in opened.videos}
    store = open_pictures(folder, wanted.__contains__, clips=clips)
    if store is None:
        raise FileNotFoundError(f"the videos of {folder} are not where they were; name them with --clips")
    records = {record.video_id: record for record in store.records}
    missing = sorted(wanted - records.keys())
    if missing:
        where = clips or opened.clips_path
        raise ValueError(f"{len(missing)} videos of {folder} are not in {where}, for example {missing[0]!r}")
    found = search_duplicates(
        opened,
        lambda number: read_thumbnails(store, records[opened.videos[number].video_id]),
        progress=progress_bar,
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
    print_rows(rows, title, as_json=as_json, as_csv=as_csv)


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
        print_rows(members, "", as_json=as_json, as_csv=as_csv)
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
    print_rows(rows, f"{len(rows)} clusters, separation {clustering.separation:.2f}", as_json=False, as_csv=False)
    typer.echo("unlike all others: " + _name_outliers(opened, clustering.outliers))


def _name_outliers(opened: "SearchIndex", outliers: tuple[tuple[int, float], ...]) -> str:
    return ", ".join(f"{opened.videos[video].video_id} ({value:.2f})" for video, value in outliers[:3])
