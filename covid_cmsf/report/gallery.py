"""Which queries a gallery shows: some of every class, and of each some that were helped, hurt, right and wrong."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

from covid_cmsf.report.ranking import RankedStage
from covid_cmsf.report.runs import ORDER, StageRun

Outcome = Literal["improved", "hurt", "right", "wrong"]


def outcome(before: bool, after: bool) -> Outcome:
    """What became of a query whose nearest neighbor was right or wrong before, and after."""
    if before == after:
        return "right" if after else "wrong"
    return "improved" if after else "hurt"


def choose_queries(
    labels: Sequence[int], outcomes: Sequence[str], number: int, *, always_shown: Sequence[int] = (), seed: int = 0
) -> list[int]:
    """Up to `number` places of queries; `always` come first. `kinds` are outcomes, or several in one word.

    Classes take turns, and within a class its kinds do, so rare kinds are seen as long as there are any.
    """
    rng = random.Random(seed)
    buckets: dict[int, dict[str, list[int]]] = {}
    for index, (label, kind) in enumerate(zip(labels, outcomes, strict=True)):
        if index not in always_shown:
            buckets.setdefault(label, {}).setdefault(kind, []).append(index)
    by_class = []
    for label in sorted(buckets):
        columns = [rng.sample(indices, len(indices)) for _, indices in sorted(buckets[label].items())]
        rng.shuffle(columns)
        by_class.append([index for row in zip_longest(*columns) for index in row if index is not None])
    interleaved = [index for row in zip_longest(*by_class) for index in row if index is not None]
    return [*always_shown, *interleaved[: max(0, number - len(always_shown))]]


# The stages of one plan that have features, brought to one list of videos: what galleries, maps and errors show.

Ranked = tuple[StageRun, RankedStage]


@dataclass
class Gallery:
    """`ids[: num_queries]` are all queries, then come neighbors that are shown. Labels are numbers of `classes`."""

    ids: list[str]
    labels: list[int]
    classes: list[str]
    num_queries: int
    shown: list[int]  # queries of the gallery
    num_neighbors: int
    stages: list[Ranked]
    query_rows: list[list[int]]  # for each stage and query its row among the stage's queries, -1 where it lacks it
    index_of: dict[str, int] = field(repr=False)  # of a video, by its id

    def values(self) -> dict[str, Any]:
        """Who the videos are, and for each stage the rank of every query's first right neighbor, and its answer."""
        return {
            "ids": self.ids,
            "labels": self.labels,
            "classes": self.classes,
            "num_queries": self.num_queries,
            "shown": self.shown,
            "stages": [self._stage_values(number) for number in range(len(self.stages))],
        }

    def _stage_values(self, number: int) -> dict[str, Any]:
        stage, ranked = self.stages[number]
        ranks, predictions = ranked.first_correct.tolist(), ranked.videos.labels[ranked.neighbors[:, 0]].tolist()
        places = self.query_rows[number]
        return {
            "name": stage.name,
            "modality": stage.modality,
            "kind": stage.kind,
            "r1": ranked.r1,
            "evaluation": ranked.evaluation,
            "first_correct": [ranks[place] if place >= 0 else None for place in places],
            "prediction": [predictions[place] if place >= 0 else None for place in places],
        }

    def neighbors(self) -> list[dict[str, list[int]]]:
        """For each stage, flat: the neighbors of each shown query (numbers of videos, -1 none), cosines times 1000."""
        return [self._neighbor_values(number) for number in range(len(self.stages))]

    def _neighbor_values(self, number: int) -> dict[str, list[int]]:
        _, ranked = self.stages[number]
        indices: list[int] = []
        similarity: list[int] = []
        for query in self.shown:
            place, k = self.query_rows[number][query], self.num_neighbors
            rows = ranked.neighbors[place, :k].tolist() if place >= 0 else []
            values = (1000 * ranked.similarity[place, :k]).round().int().tolist() if place >= 0 else []
            indices += [self.index_of[ranked.videos.ids[row]] for row in rows] + [-1] * (k - len(rows))
            similarity += values + [0] * (k - len(rows))
        return {"indices": indices, "similarity": similarity}

    def maps(self) -> list[dict[str, Any]]:
        """For each stage the places of all queries, by method; None where a stage lacks a query."""
        return [self._map_values(number) for number in range(len(self.stages))]

    def _map_values(self, number: int) -> dict[str, Any]:
        _, ranked = self.stages[number]
        methods = {"pca": ranked.pca, **({"umap": ranked.umap} if ranked.umap is not None else {})}
        columns = {}
        for name, places in methods.items():
            scaled = (places / places.abs().max().clamp_min(1e-12)).tolist()
            for axis, letter in enumerate("xy"):
                columns[f"{name}_{letter}"] = [
                    round(scaled[place][axis], 4) if place >= 0 else None for place in self.query_rows[number]
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
    """None when no stage has features; notes say which could not be used and why."""
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
    ids = [first.videos.ids[row] for row in first.queries.tolist()]
    places = []
    for _, one in ranked:
        row_of = {one.videos.ids[row]: place for place, row in enumerate(one.queries.tolist())}
        places.append([row_of.get(video_id, -1) for video_id in ids])
    labels = first.videos.labels[first.queries].tolist()
    classes = max((one.videos.class_names for _, one in ranked), key=len)
    wanted = [ids.index(video_id) for video_id in dict.fromkeys(always_shown) if video_id in ids]
    shown = choose_queries(labels, _outcomes(ranked, places), num_shown, always_shown=wanted, seed=seed)
    gallery = Gallery(ids, labels, [*classes], len(ids), shown, num_neighbors, ranked, places, {})
    _add_neighbors_(gallery)
    return gallery, notes


def _outcomes(ranked: Sequence[Ranked], places: Sequence[list[int]]) -> list[str]:
    """What became of each query between the first stage of a modality and its last round, for all modalities."""
    outcomes = [""] * len(places[0])
    for modality in dict.fromkeys(stage.modality for stage, _ in ranked):
        before, after = before_and_after([stage for stage, _ in ranked], modality)
        for query in range(len(outcomes)):
            hits = [
                places[n][query] >= 0 and int(ranked[n][1].first_correct[places[n][query]]) == 1
                for n in (before, after)
            ]
            outcomes[query] += f" {outcome(hits[0], hits[1])}"
    return outcomes


def before_and_after(stages: Sequence[StageRun], modality: str | None) -> tuple[int, int]:
    """Numbers of the first stage of a modality and of its last round (without any: of its last trained stage)."""
    candidates = [number for number, stage in enumerate(stages) if stage.modality == modality]
    rounds = [number for number in candidates if stages[number].kind == "round"]
    trained = [number for number in candidates if stages[number].kind != "baseline"]
    return candidates[0], (rounds or trained or candidates)[-1]


def _add_neighbors_(gallery: Gallery) -> None:
    """Gives a number to every video that is a neighbor of a shown query."""
    gallery.index_of.update({video_id: number for number, video_id in enumerate(gallery.ids)})
    for (_, ranked), places in zip(gallery.stages, gallery.query_rows, strict=True):
        for query in gallery.shown:
            if places[query] < 0:
                continue
            for row in ranked.neighbors[places[query], : gallery.num_neighbors].tolist():
                video_id = ranked.videos.ids[row]
                if video_id not in gallery.index_of:
                    gallery.index_of[video_id] = len(gallery.ids)
                    gallery.ids.append(video_id)
                    gallery.labels.append(int(ranked.videos.labels[row]))
