"""How far do numbers that need no labels predict R@1? Correlations over the stages and seeds of a plan.

    python tools/label_free_correlation.py RUNS --stages infonce,msf,cmsf --out FILE

RUNS is the folder of a plan (`covid-cmsf cotrain`). R@1 is measured with labels: those of the features file, or, if it
has none, those in the ids of UCF-101 clips; every video is a query among all videos of other sources.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from scipy.stats import pearsonr, spearmanr

from covid_cmsf.evaluation.features.file import Features, load_features
from covid_cmsf.evaluation.label_free import label_free_measures
from covid_cmsf.evaluation.nearest import center_and_normalize
from covid_cmsf.files import write_text_atomic

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the checkout: `tools` is not installed
from tools.compare_search import parse_ids

MEASURES = ("window_r1", "agreement", "effective_rank")
MODALITIES = ("rgb", "flow")


@dataclass(frozen=True)
class Point:
    """One stage of one seed. Agreement is that with the other modality's network of the same kind of stage."""

    seed: int
    stage: str
    modality: str
    r1: float
    window_r1: float
    agreement: float
    effective_rank: float


def leave_source_out_r1(features: Features) -> float:
    """Return the percentage of videos whose nearest video of another source has their class."""
    videos = features.videos
    labels: Sequence[object] = videos.labels.tolist()
    sources: Sequence[str] = videos.sources
    if int(videos.labels.min()) < 0:
        parsed = parse_ids(videos.ids)
        labels, sources = parsed.classes, parsed.sources
    unit, _ = center_and_normalize(features.features, features.features[:0], "train")
    names = np.array(sources)
    similarity = np.where(names[:, None] == names[None, :], -np.inf, (unit @ unit.T).numpy())
    found = similarity.argmax(1)
    return 100 * float(np.mean([labels[query] == labels[int(best)] for query, best in enumerate(found)]))


def plan_points(runs: Path, kinds: Sequence[str]) -> list[Point]:
    """Return a point per seed, kind of stage and modality; a kind such as cmsf takes its last round that is there."""
    points = []
    for folder in sorted(runs.glob("seed-*")):
        seed = int(folder.name.removeprefix("seed-"))
        for kind in kinds:
            paths = [_stage_folder(folder, kind, modality) for modality in MODALITIES]
            if any(path is None for path in paths):
                continue
            both = [load_features(path / "features.safetensors") for path in paths if path is not None]
            for modality, one, other in zip(MODALITIES, both, reversed(both), strict=True):
                found = label_free_measures(one, [other])
                points.append(
                    Point(
                        seed=seed,
                        stage=kind,
                        modality=modality,
                        r1=leave_source_out_r1(one),
                        window_r1=float("nan") if found.window_r1 is None else found.window_r1,
                        agreement=found.agreement[0].percent,
                        effective_rank=found.effective_rank,
                    )
                )
    return points


def _stage_folder(seed: Path, kind: str, modality: str) -> Path | None:
    pattern = re.compile(rf"{re.escape(kind)}-{modality}(-\d+)?")
    found = sorted(one for one in seed.iterdir() if pattern.fullmatch(one.name))
    complete = [one for one in found if (one / "features.safetensors").is_file()]
    return complete[-1] if complete else None


def correlations(points: Sequence[Point]) -> dict[str, dict[str, dict[str, float]]]:
    """Return {points: {measure: {spearman, pearson, n}}} for each modality, both, and trained networks only."""
    groups = {modality: [one for one in points if one.modality == modality] for modality in MODALITIES}
    groups |= {f"{name}, trained": [one for one in group if one.stage != "random"] for name, group in groups.items()}
    groups["both"] = list(points)
    groups["both, trained"] = [one for one in points if one.stage != "random"]
    result: dict[str, dict[str, dict[str, float]]] = {}
    for name, group in groups.items():
        if len(group) < 3:
            continue
        r1 = [one.r1 for one in group]
        result[name] = {}
        for measure in MEASURES:
            values = [getattr(one, measure) for one in group]
            result[name][measure] = {
                "spearman": round(float(spearmanr(values, r1).statistic), 2),
                "pearson": round(float(pearsonr(values, r1).statistic), 2),
                "n": len(group),
            }
    return result


def main(
    runs: Path,
    kinds: Annotated[str, typer.Option("--stages", help="Kinds of stages.")] = "random,infonce,continued,msf,cmsf",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON file to write.")] = None,
) -> None:
    """Print and write the points of a plan and their correlations."""
    points = plan_points(runs, kinds.split(","))
    found = correlations(points)
    for point in points:
        typer.echo(
            f"seed {point.seed} {point.stage:10} {point.modality:4} R@1 {point.r1:5.1f}  "
            f"window {point.window_r1:5.1f}  agreement {point.agreement:5.1f}  rank {point.effective_rank:5.1f}"
        )
    for name, one in found.items():
        texts = [f"{key} {value['spearman']:+.2f} / {value['pearson']:+.2f}" for key, value in one.items()]
        typer.echo(f"{name} ({one['window_r1']['n']} points), Spearman / Pearson: {', '.join(texts)}")
    if out is not None:
        write_text_atomic(
            out, json.dumps({"points": [asdict(one) for one in points], "correlations": found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    typer.run(main)
