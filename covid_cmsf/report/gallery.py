"""Gallery of a plan: selected queries with their neighbors in every stage that has features.

Maps and errors use the same list of videos.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

from covid_cmsf.report.ranking import RankedStage
from covid_cmsf.report.runs import ORDER, StageRun

Outcome = Literal["improved", "hurt", "right", "wrong"]


def outcome(before: bool, after: bool) -> Outcome:
    """Classify a query by whether its nearest neighbor was correct before and after training."""
    if before == after:
        return "right" if after else "wrong"
    return "improved" if after else "hurt"


def choose_queries(
    labels: Sequence[int], outcomes: Sequence[str], number: int, *, always_shown: Sequence[int] = (), seed: int = 0
) -> list[int]:
    """Return up to `number` indices of queries; `always_shown` come first.

    Round-robin over classes, and within a class over outcomes, so that rare outcomes are included. An outcome may be a
    combination, one per modality.
    """
    rng = random.Random(seed)
    buckets: dict[int, dict[str, list[int]]] = {}
    for index, (label, result) in enumerate(zip(labels, outcomes, strict=True)):
        if index not in always_shown:
            buckets.setdefault(label, {}).setdefault(result, []).append(index)
    by_class = []
    for label in sorted(buckets):
        columns = [rng.sample(indices, len(indices)) for _, indices in sorted(buckets[label].items())]
        rng.shuffle(columns)
        by_class.append([index for row in zip_longest(*columns) for index in row if index is not None])
    interleaved = [index for row in zip_longest(*by_class) for index in row if index is not None]
    return [*always_shown, *interleaved[: max(0, number - len(always_shown))]]


Ranked = tuple[StageRun, RankedStage]


@dataclass
class Gallery:
    """Videos and rankings of all stages. `ids[:num_queries]` are the queries, followed by displayed neighbors."""

    ids: list[str]
    labels: list[int]  # indices into `classes`
    classes: list[str]
    num_queries: int
    shown: list[int]  # indices of the displayed queries
    num_neighbors: int
    stages: list[Ranked]
    query_rows: list[list[int]]  # [stage][query]: row in the stage's ranking, -1 if absent
    index_of: dict[str, int] = field(repr=False)  # {video id: index into `ids`}

    @property
    def labeled(self) -> bool:
        """Whether all videos have labels: without them nothing is right or wrong."""
        return all(ranked.labeled for _, ranked in self.stages)

    def values(self) -> dict[str, Any]:
        """Return the videos and, per stage and query, the rank of the first correct neighbor and the prediction.

        Of the linear classifier there are only its counts, `linear_confusion`; None if a stage has none.
        """
        return {
            "ids": self.ids,
            "labels": self.labels,
            "classes": self.classes,
            "num_queries": self.num_queries,
            "labeled": self.labeled,
            "shown": self.shown,
            "stages": [self._stage_values(number) for number in range(len(self.stages))],
        }

    def _stage_values(self, number: int) -> dict[str, Any]:
        stage, ranked = self.stages[number]
        ranks, predictions = ranked.first_correct.tolist(), ranked.videos.labels[ranked.neighbors[:, 0]].tolist()
        # Without labels no neighbor is right or wrong.
        rows = self.query_rows[number] if self.labeled else [-1] * self.num_queries
        return {
            "name": stage.name,
            "modality": stage.modality,
            "kind": stage.kind,
            "r1": ranked.r1,
            "evaluation": ranked.evaluation,
            "first_correct": [ranks[row] if row >= 0 else None for row in rows],
            "prediction": [predictions[row] if row >= 0 else None for row in rows],
            "linear_confusion": stage.linear.get("scores", {}).get("confusion"),
        }

    def neighbors(self) -> list[dict[str, list[int]]]:
        """Return per stage, flattened: neighbor indices (-1: none) and cosines times 1000 of the displayed queries."""
        return [self._neighbor_values(number) for number in range(len(self.stages))]

    def _neighbor_values(self, number: int) -> dict[str, list[int]]:
        _, ranked = self.stages[number]
        indices: list[int] = []
        similarity: list[int] = []
        for query in self.shown:
            row, k = self.query_rows[number][query], self.num_neighbors
            videos = ranked.neighbors[row, :k].tolist() if row >= 0 else []
            values = (1000 * ranked.similarity[row, :k]).round().int().tolist() if row >= 0 else []
            indices += [self.index_of[ranked.videos.ids[video]] for video in videos] + [-1] * (k - len(videos))
            similarity += values + [0] * (k - len(videos))
        return {"indices": indices, "similarity": similarity}

    def maps(self) -> list[dict[str, Any]]:
        """Return per stage the 2D coordinates of all queries, by method; None if a stage lacks a query."""
        return [self._map_values(number) for number in range(len(self.stages))]

    def _map_values(self, number: int) -> dict[str, Any]:
        _, ranked = self.stages[number]
        methods = {"pca": ranked.pca, **({"umap": ranked.umap} if ranked.umap is not None else {})}
        columns = {}
        for name, points in methods.items():
            scaled = (points / points.abs().max().clamp_min(1e-12)).tolist()
            for axis, letter in enumerate("xy"):
                columns[f"{name}_{letter}"] = [
                    round(scaled[row][axis], 4) if row >= 0 else None for row in self.query_rows[number]
                ]
        return {**columns, "explained_variance": ranked.explained_variance}


def build_gallery(
    stages: Sequence[StageRun],
    rank: Callable[[StageRun], RankedStage],
    *,
    num_shown: int,
    num_neighbors: int,
    always_shown: Sequence[str] = (),
    seed: int = 0,
) -> tuple[Gallery | None, list[str]]:
    """Build the gallery, None if no stage has features; also return notes about unusable stages."""
    notes: list[str] = []
    ranked: list[Ranked] = []
    for stage in sorted((one for one in stages if one.features), key=lambda one: ORDER.index(one.kind)):
        try:
            ranked.append((stage, rank(stage)))
        except (ValueError, FileNotFoundError) as error:
            notes.append(f"{stage.name}: no neighbors, map or errors: {error}")
    if not ranked:
        return None, notes
    notes += [one.note for _, one in ranked if one.note]
    first = ranked[0][1]
    ids = [first.videos.ids[video] for video in first.queries.tolist()]
    query_rows = []
    for _, one in ranked:
        row_of = {one.videos.ids[video]: row for row, video in enumerate(one.queries.tolist())}
        query_rows.append([row_of.get(video_id, -1) for video_id in ids])
    labels = first.videos.labels[first.queries].tolist()
    classes = max((one.videos.class_names for _, one in ranked), key=len)
    required = [ids.index(video_id) for video_id in dict.fromkeys(always_shown) if video_id in ids]
    shown = choose_queries(labels, _outcomes(ranked, query_rows), num_shown, always_shown=required, seed=seed)
    gallery = Gallery(ids, labels, [*classes], len(ids), shown, num_neighbors, ranked, query_rows, {})
    _add_neighbors_(gallery)
    return gallery, notes


def _outcomes(ranked: Sequence[Ranked], query_rows: Sequence[list[int]]) -> list[str]:
    """Return the outcomes of each query, one per modality, from its first stage to its last round."""
    outcomes = [""] * len(query_rows[0])
    for modality in dict.fromkeys(stage.modality for stage, _ in ranked):
        before, after = before_and_after([stage for stage, _ in ranked], modality)
        for query in range(len(outcomes)):
            hits = [
                query_rows[n][query] >= 0 and int(ranked[n][1].first_correct[query_rows[n][query]]) == 1
                for n in (before, after)
            ]
            outcomes[query] += f" {outcome(hits[0], hits[1])}"
    return outcomes


def before_and_after(stages: Sequence[StageRun], modality: str | None) -> tuple[int, int]:
    """Return the indices of a modality's first stage and of its last round (or last trained stage)."""
    candidates = [number for number, stage in enumerate(stages) if stage.modality == modality]
    rounds = [number for number in candidates if stages[number].kind == "round"]
    trained = [number for number in candidates if stages[number].kind != "baseline"]
    return candidates[0], (rounds or trained or candidates)[-1]


def _add_neighbors_(gallery: Gallery) -> None:
    """Add every video that is a neighbor of a displayed query."""
    gallery.index_of.update({video_id: number for number, video_id in enumerate(gallery.ids)})
    for (_, ranked), rows in zip(gallery.stages, gallery.query_rows, strict=True):
        for query in gallery.shown:
            if rows[query] < 0:
                continue
            for video in ranked.neighbors[rows[query], : gallery.num_neighbors].tolist():
                video_id = ranked.videos.ids[video]
                if video_id not in gallery.index_of:
                    gallery.index_of[video_id] = len(gallery.ids)
                    gallery.ids.append(video_id)
                    gallery.labels.append(int(ranked.videos.labels[video]))
