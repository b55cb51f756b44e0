"""`covid-cmsf evaluate compare`: is one network better than another, or is it chance?"""

from pathlib import Path

import typer

from covid_cmsf.cli.options import (
    AllowSharedSources,
    AllowStale,
    Center,
    Gallery,
    Json,
    Query,
    ResultFile,
    Seed,
    ValFraction,
    print_result,
    report_skipped,
)


def compare(
    first: Path = typer.Argument(..., help="Features that the others are compared with.", show_default=False),
    others: list[Path] = typer.Argument(..., help="Features of other networks, same videos.", show_default=False),
    gallery: Gallery = "train",
    query: Query = "test",
    center: Center = None,
    allow_shared_sources: AllowSharedSources = False,
    allow_stale: AllowStale = False,
    val_fraction: ValFraction = 0.2,
    seed: Seed = 0,
    out: ResultFile = None,
    as_json: Json = False,
) -> None:
    """Compare networks on the same queries: paired difference in R@k and kNN, with a 95% interval and a verdict.

    Sources are resampled, and with several networks the verdicts are corrected for their number.

    \\b
    covid-cmsf evaluate compare msf.features cmsf.features
    """
    from covid_cmsf.evaluation.compare import compare_features
    from covid_cmsf.evaluation.features.stale import load_current_features
    from covid_cmsf.evaluation.render import compare_table

    paths = [first, *others]
    files = [(str(path), load_current_features(path, allow_stale=allow_stale)) for path in paths]
    result = compare_features(
        files,
        gallery=gallery,
        query=query,
        centering=center,
        allow_shared_sources=allow_shared_sources,
        val_fraction=val_fraction,
        seed=seed,
    )
    print_result("compare", result, compare_table(result), out, as_json)
    report_skipped([skipped for _, features in files for skipped in features.skipped])
