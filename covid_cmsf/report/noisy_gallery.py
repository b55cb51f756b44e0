"""Neighbors under label noise, figure 2 of the paper: what does a label constraint find if many labels are wrong?

There are three rows for one label: neighbors, among images with that label, of a query that has it correctly; of a
query that has it wrongly; and random images with that label. If the constraint works, the first two rows resemble
their queries.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.clips import open_clips
from covid_cmsf.config import load_config
from covid_cmsf.evaluation.features.stale import load_current_features
from covid_cmsf.pages.thumbnails import STYLES, encode_webp, resize_short_edge
from covid_cmsf.report.runs import PlanRun, StageRun
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.data import select_listed, visible_labels
from covid_cmsf.training.run_dir import CONFIG_FILE

# N images, D feature


Kind = Literal["correct", "wrong", "random"]


@dataclass(frozen=True)
class GalleryImage:
    """An image of a row. `similarity` is the cosine to the query; None for random images."""

    name: str
    noisy_label: int
    true_label: int
    similarity: float | None


@dataclass(frozen=True)
class GalleryRow:
    """A query and its neighbors; `purity` is the fraction with the query's true label (`random`: with the label)."""

    kind: Kind
    query: GalleryImage | None
    neighbors: tuple[GalleryImage, ...]
    purity: float


def gallery_rows(
    features: Tensor,
    noisy: Tensor,
    true: Tensor,
    names: Sequence[str],
    *,
    label: int | None = None,
    num_neighbors: int = 10,
    seed: int = 0,
) -> list[GalleryRow]:
    """Return the three rows of a label, by default a random one. Features (N, D); noisy and true labels (N,)."""
    rng = random.Random(seed)
    candidates = [
        one for one in sorted(set(noisy.tolist()) - {-1}) if _has_right_and_wrong(noisy, true, one, num_neighbors)
    ]
    if label is None and not candidates:
        raise ValueError(f"no label has a correct image, a wrong one and {num_neighbors} others: is there any noise?")
    if label is not None and label not in candidates:
        raise ValueError(f"label {label} has no correct image, no wrong one, or fewer than {num_neighbors} others")
    chosen = rng.choice(candidates) if label is None else label
    members = (noisy == chosen).nonzero().flatten()
    right, wrong = members[true[members] == chosen].tolist(), members[true[members] != chosen].tolist()
    unit = F.normalize(features.float(), dim=1)
    rows = []
    for kind, query in (("correct", rng.choice(right)), ("wrong", rng.choice(wrong))):
        others = members[members != query]
        similar = unit[others] @ unit[query]
        best = torch.argsort(-similar, stable=True)[:num_neighbors]
        neighbors = tuple(_gallery_image(int(others[i]), noisy, true, names, float(similar[i])) for i in best)
        query_image = _gallery_image(query, noisy, true, names, None)
        rows.append(GalleryRow(kind, query_image, neighbors, _purity(neighbors, query_image.true_label)))  # type: ignore[arg-type]
    random_images = tuple(
        _gallery_image(i, noisy, true, names, None) for i in rng.sample(members.tolist(), num_neighbors)
    )
    return [*rows, GalleryRow("random", None, random_images, _purity(random_images, chosen))]


def gallery_to_dict(rows: Sequence[GalleryRow], class_names: Sequence[str]) -> dict[str, Any]:
    """Return the gallery as JSON values."""
    return {"class_names": list(class_names), "rows": [asdict(row) for row in rows]}


def _has_right_and_wrong(noisy: Tensor, true: Tensor, label: int, num_neighbors: int) -> bool:
    members = true[noisy == label]
    return len(members) > num_neighbors and bool((members == label).any()) and bool((members != label).any())


def _gallery_image(
    row: int, noisy: Tensor, true: Tensor, names: Sequence[str], similarity: float | None
) -> GalleryImage:
    return GalleryImage(names[row], int(noisy[row]), int(true[row]), similarity)


def _purity(neighbors: Sequence[GalleryImage], label: int) -> float:
    return sum(one.true_label == label for one in neighbors) / len(neighbors)


@dataclass(frozen=True)
class RunGallery:
    """Gallery of a run; `pictures` are (H, W, 3) by name."""

    rows: list[GalleryRow]
    pictures: dict[str, NDArray[np.uint8]]
    class_names: tuple[str, ...]


def run_gallery(
    run: Path, features: Path, *, label: int | None = None, num_neighbors: int = 10, seed: int = 0
) -> RunGallery:
    """Build the gallery of the run in folder `run`; `features` must have all of its training images."""
    config = load_config(TrainConfig, run / CONFIG_FILE)
    clips, loaded = open_clips(config.clips), load_current_features(features)
    trained = select_listed(clips.select(config.split, config.subset), config.labels)
    records = {record.video_id: record for record in trained}
    labels = dict(zip(records, visible_labels(trained, config.labels).tolist(), strict=True))
    rows = [row for row, name in enumerate(loaded.videos.ids) if name in records]
    if len(rows) < len(records):
        raise ValueError(f"{features} has {len(rows)} of the {len(records)} images that {run} was trained on")
    names = [loaded.videos.ids[row] for row in rows]
    gallery = gallery_rows(
        loaded.features[rows],
        torch.tensor([labels[name] for name in names]),
        loaded.videos.labels[torch.tensor(rows)],
        names,
        label=label,
        num_neighbors=num_neighbors,
        seed=seed,
    )
    shown_names = {one.name for row in gallery for one in (*row.neighbors, *([row.query] if row.query else []))}
    pictures = {}
    for name in shown_names:
        middle = records[name].num_frames // 2
        pictures[name] = clips.read_raw(records[name], "rgb", [middle])[0].permute(1, 2, 0).numpy()
    return RunGallery(gallery, pictures, loaded.videos.class_names)


FOLDER = "noisy"
MAX_STAGES, NUM_LABELS = 4, 2


def has_noisy_labels(stage: StageRun) -> bool:
    """Whether the stage was trained with noisy labels and has features."""
    labels = stage.config.labels if stage.config is not None else None
    return labels is not None and bool(labels.noise or labels.file) and stage.features is not None


def noisy_galleries(plans: Sequence[PlanRun], out: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return galleries of up to four stages, two labels each, and notes; images are written to `out`/noisy."""
    galleries: list[dict[str, Any]] = []
    notes: list[str] = []
    stages = [(plan, stage) for plan in plans for stage in plan.first_seed.stages if has_noisy_labels(stage)]
    for plan, stage in stages[:MAX_STAGES]:
        for seed in range(NUM_LABELS):
            try:
                assert stage.features is not None
                gallery = run_gallery(stage.folder, stage.features, num_neighbors=8, seed=seed)
            except (ValueError, OSError) as error:
                notes.append(f"{stage.name}: no gallery under label noise: {error}")
                break
            galleries.append({"plan": plan.name, "stage": stage.name, **_gallery_values(gallery, out)})
    if len(stages) > MAX_STAGES:
        notes.append(f"galleries under label noise: {MAX_STAGES} of {len(stages)} stages are displayed")
    return galleries, notes


def _gallery_values(gallery: RunGallery, out: Path) -> dict[str, Any]:
    label = gallery.rows[0].neighbors[0].noisy_label
    rows = [
        {
            "kind": row.kind,
            "purity": row.purity,
            "query": _image_values(row.query, gallery, out) if row.query is not None else None,
            "neighbors": [_image_values(one, gallery, out) for one in row.neighbors],
            "expected_class": gallery.class_names[row.query.true_label if row.query is not None else label],
        }
        for row in gallery.rows
    ]
    return {"label": gallery.class_names[label], "rows": rows}


def _image_values(image: GalleryImage, gallery: RunGallery, out: Path) -> dict[str, Any]:
    name = hashlib.sha256(image.name.encode("utf-8", "surrogateescape")).hexdigest()[:12] + ".webp"
    path = out / FOLDER / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_webp([resize_short_edge(gallery.pictures[image.name], STYLES[0].edge)], quality=70))
    return {
        "id": image.name,
        "class": gallery.class_names[image.true_label],
        "similarity": image.similarity,
        "picture": f"{FOLDER}/{name}",
    }
