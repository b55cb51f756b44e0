"""`covid-cmsf evaluate neighbors` and `covid-cmsf evaluate unlabeled`: what works without labels."""

from pathlib import Path

import typer

from covid_cmsf.cli.options import AllowStale, Features, Json, ResultFile, print_result, report_skipped


def neighbors(
    features: Features,
    video: list[str] | None = typer.Option(
        None, "--video", help="Id of a video; may be given several times. Default: all videos.", show_default=False
    ),
    k: int = typer.Option(5, "--k", min=1, help="Neighbors per video."),
    allow_stale: AllowStale = False,
    out: ResultFile = None,
    as_json: Json = False,
) -> None:
    """Print the most similar videos of each video. Needs no labels: all videos of the file, whatever their subset.

    \b
    covid-cmsf evaluate neighbors rgb.features --video cats/kitten
    """
    from covid_cmsf.evaluation.neighbors import find_neighbors
    from covid_cmsf.evaluation.preflight import load_checked
    from covid_cmsf.evaluation.render import neighbors_table

    (loaded,) = load_checked([features], allow_stale=allow_stale, out=out)
    result = find_neighbors(loaded, video or (), k=k)
    print_result("neighbors", result, neighbors_table(result), out, as_json)
    report_skipped(loaded.skipped)


def unlabeled(
    features: Features,
    other: list[Path] | None = typer.Argument(
        None, help="Features of other networks, to compare neighbors with.", show_default=False
    ),
    k: int = typer.Option(10, "--k", min=1, help="Neighbors per video that are compared."),
    allow_stale: AllowStale = False,
    out: ResultFile = None,
    as_json: Json = False,
) -> None:
    """Measure what needs no labels: effective rank, a video's other window, neighbors that two networks agree on.

    \b
    covid-cmsf evaluate unlabeled rgb.features flow.features
    """
    from covid_cmsf.evaluation.label_free import label_free_measures
    from covid_cmsf.evaluation.preflight import load_checked
    from covid_cmsf.evaluation.render import label_free_table

    loaded, *others = load_checked([features, *(other or ())], allow_stale=allow_stale, out=out)
    result = label_free_measures(loaded, others, k=k)
    print_result("unlabeled", result, label_free_table(result), out, as_json)
    report_skipped([skipped for one in (loaded, *others) for skipped in one.skipped])
