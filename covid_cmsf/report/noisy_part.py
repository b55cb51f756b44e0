"""The gallery of figure 2 for the page: neighbors among images of the same, partly wrong label."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covid_cmsf.report.noisy_neighbors import Shown
from covid_cmsf.report.noisy_run import RunGallery, run_gallery
from covid_cmsf.report.plan_folder import PlanFolder
from covid_cmsf.report.stage_folder import StageFolder
from covid_cmsf.report.thumbnails import STYLES, encode, small_picture

FOLDER = "noisy"
MOST_STAGES, NUM_LABELS = 4, 2


def has_wrong_labels(stage: StageFolder) -> bool:
    """Whether it was trained under noise and has features to look for neighbors with."""
    labels = stage.settings.labels if stage.settings is not None else None
    return labels is not None and bool(labels.noise or labels.file) and stage.features is not None


def noisy_galleries(plans: Sequence[PlanFolder], out: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Galleries of up to four stages, two labels each, and why others have none. Pictures go to `out`/noisy."""
    galleries: list[dict[str, Any]] = []
    notes: list[str] = []
    stages = [(plan, stage) for plan in plans for stage in plan.first.stages if has_wrong_labels(stage)]
    for plan, stage in stages[:MOST_STAGES]:
        for seed in range(NUM_LABELS):
            try:
                assert stage.features is not None
                gallery = run_gallery(stage.folder, stage.features, num_found=8, seed=seed)
            except (ValueError, OSError) as error:
                notes.append(f"{stage.name}: no gallery under wrong labels: {error}")
                break
            galleries.append({"plan": plan.name, "stage": stage.name, **_values(gallery, out)})
    if len(stages) > MOST_STAGES:
        notes.append(f"galleries under wrong labels: {MOST_STAGES} of {len(stages)} stages are shown")
    return galleries, notes


def _values(gallery: RunGallery, out: Path) -> dict[str, Any]:
    label = gallery.rows[0].found[0].seen_label
    rows = [
        {
            "kind": row.kind,
            "purity": row.purity,
            "query": _one(row.query, gallery, out) if row.query is not None else None,
            "found": [_one(one, gallery, out) for one in row.found],
            "wanted": gallery.class_names[row.query.true_label if row.query is not None else label],
        }
        for row in gallery.rows
    ]
    return {"label": gallery.class_names[label], "rows": rows}


def _one(shown: Shown, gallery: RunGallery, out: Path) -> dict[str, Any]:
    name = hashlib.sha256(shown.name.encode("utf-8", "surrogateescape")).hexdigest()[:12] + ".webp"
    path = out / FOLDER / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode([small_picture(gallery.pictures[shown.name], STYLES[0].edge)], quality=70))
    return {
        "id": shown.name,
        "class": gallery.class_names[shown.true_label],
        "similarity": shown.similarity,
        "picture": f"{FOLDER}/{name}",
    }
