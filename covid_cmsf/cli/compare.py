"""`covid-cmsf evaluate compare`: is one network better than another, or is it chance?"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

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
from covid_cmsf.logs import console, printable

if TYPE_CHECKING:
    from covid_cmsf.report.runs import PlanRun


def compare(
    first: str = typer.Argument(..., help="What the others are compared with.", show_default=False),
    others: list[str] = typer.Argument(..., help="Other networks, measured on the same videos.", show_default=False),
    gallery: Gallery = "train",
    query: Query = "test",
    center: Center = None,
    linear: Annotated[bool, typer.Option(help="Train a linear probe per network.")] = True,
    allow_shared_sources: AllowSharedSources = False,
    allow_stale: AllowStale = False,
    val_fraction: ValFraction = 0.2,
    seed: Seed = 0,
    out: ResultFile = None,
    as_json: Json = False,
) -> None:
    """Compare networks on the same queries: paired difference in R@k, kNN and linear, 95% interval, verdict.

    Each argument is a features file, the folder of a run, or PLAN:STAGE: that stage in all seeds and splits of a plan's
    folder. A+B fuses two of them, seed by seed. NAME=ARGUMENT names it; several of one name are seeds of one method.
    Sources and seeds are resampled, and with several networks the verdicts are corrected for their number.

    \b
    covid-cmsf evaluate compare msf.features cmsf.features
    covid-cmsf evaluate compare runs/demo:msf-rgb runs/demo:cmsf-rgb-1
    covid-cmsf evaluate compare msf=runs/m0 msf=runs/m1 cmsf=runs/c0 cmsf=runs/c1
    covid-cmsf evaluate compare rgb=runs/demo:cmsf-rgb-1 both=runs/demo:cmsf-rgb-1+runs/demo:cmsf-flow-1
    """
    from covid_cmsf.evaluation.compare import MethodRun, compare_runs
    from covid_cmsf.evaluation.features.stale import load_current_features
    from covid_cmsf.evaluation.render import compare_table

    load = partial(load_current_features, allow_stale=allow_stale)
    runs = [
        MethodRun(one.method, load(one.features), one.seed, None if one.second is None else load(one.second))
        for one in find_runs([first, *others])
    ]
    result = compare_runs(
        runs,
        gallery=gallery,
        query=query,
        centering=center,
        allow_shared_sources=allow_shared_sources,
        val_fraction=val_fraction,
        linear=linear,
        seed=seed,
    )
    print_result("compare", result, compare_table(result), out, as_json)
    report_skipped([skipped for run in runs for one in run.streams for skipped in one.skipped])


class FoundRun(NamedTuple):
    """Features file of one training run; `second` is that of a network that it is fused with."""

    method: str
    features: Path
    seed: int | None
    second: Path | None = None


def find_runs(arguments: Sequence[str]) -> list[FoundRun]:
    """Return the features files of the arguments; FileNotFoundError or ValueError for one that has none."""
    runs: list[FoundRun] = []
    for text in arguments:
        name, equals, rest = ("", "", text) if Path(text).exists() else text.partition("=")
        name, rest = (name, rest) if equals else (text, text)
        left, plus, right = (rest, "", "") if Path(rest).exists() else rest.partition("+")
        found = _find_features(left)
        if not plus:
            runs += [FoundRun(name, path, seed) for path, seed in found]
            continue
        fused = _find_features(right)
        if (seeds := [seed for _, seed in found]) != (others := [seed for _, seed in fused]):
            raise ValueError(f"{rest}: seeds {seeds} and {others} cannot be fused one by one")
        runs += [FoundRun(name, path, seed, second) for (path, seed), (second, _) in zip(found, fused, strict=True)]
    return runs


def _find_features(text: str) -> list[tuple[Path, int | None]]:
    """Return the features files of one argument, with the seeds of a plan."""
    from covid_cmsf.report.runs import FEATURES, PLAN_FILE, read_run

    path = Path(text)
    if path.is_file():
        return [(path, None)]
    if (path / FEATURES).is_file():
        return [(path / FEATURES, None)]
    if (path / PLAN_FILE).is_file():
        stages = ", ".join(stage.name for stage in read_run(path, text).first_seed.stages)
        raise ValueError(f"{text} is a plan: name one of its stages, as {text}:STAGE; it has {stages}")
    folder, colon, stage = text.rpartition(":")
    if colon and Path(folder).is_dir():
        return _stage_features(read_run(Path(folder), folder), stage)
    if path.is_dir():
        raise FileNotFoundError(f"{text} has no {FEATURES}: covid-cmsf extract {text} CLIPS -o {text}/{FEATURES}")
    raise FileNotFoundError(f"there is no {text}: give a features file, the folder of a run, or PLAN:STAGE")


def _stage_features(plan: "PlanRun", name: str) -> list[tuple[Path, int | None]]:
    """Return the features of a stage in all seeds and splits in which it is done; the others are told."""
    known = [stage.name for stage in plan.first_seed.stages]
    if name not in known:
        raise ValueError(f"{plan.folder} has no stage {name!r}; choose from {', '.join(known)}")
    found: list[tuple[Path, int | None]] = []
    missing: list[Path] = []
    for one in plan.seeds:
        stage = next(stage for stage in one.stages if stage.name == name)
        if stage.result and stage.features is not None:
            found.append((stage.features, one.seed))
        else:
            missing.append(stage.folder)
    if not found:
        raise FileNotFoundError(f"stage {name} of {plan.folder} is not done in any seed: run the plan first")
    for folder in missing:
        console.print(printable(f"{folder} is not done and left out"), highlight=False, markup=False)
    return found
