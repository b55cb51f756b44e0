"""`covid-cmsf evaluate low-shot`: accuracy with a few labels per class."""

import typer

from covid_cmsf.cli.options import (
    AllowSharedSources,
    AllowStale,
    Center,
    Features,
    Gallery,
    Json,
    Query,
    ResultFile,
    Seed,
    ValFraction,
    print_result,
    report_skipped,
)


def low_shot(
    features: Features,
    shots: list[int] = typer.Option(
        [1, 5, 10], "--shots", min=1, help="Labeled videos per class; may be given several times."
    ),
    draws: int = typer.Option(20, "--draws", min=1, help="Random choices of the labeled videos, averaged."),
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
    """Classify by the nearest class mean of a few labeled videos per class, which are drawn at random many times.

    \b
    covid-cmsf evaluate low-shot rgb.features --shots 1 --shots 5
    """
    from covid_cmsf.evaluation.low_shot import evaluate_low_shot
    from covid_cmsf.evaluation.preflight import load_checked
    from covid_cmsf.evaluation.render import low_shot_table

    (loaded,) = load_checked(
        [features], gallery=gallery, query=query, val_fraction=val_fraction, seed=seed,
        allow_shared_sources=allow_shared_sources, allow_stale=allow_stale, out=out,
    )  # fmt: skip
    result = evaluate_low_shot(
        loaded,
        shots=shots,
        num_draws=draws,
        gallery=gallery,
        query=query,
        centering=center,
        allow_shared_sources=allow_shared_sources,
        val_fraction=val_fraction,
        seed=seed,
    )
    print_result("low-shot", result, low_shot_table(result), out, as_json)
    report_skipped(loaded.skipped)
