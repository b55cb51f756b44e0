"""The stages of one plan that have features, brought to one list of videos: what galleries, maps and errors show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from covid_cmsf.report.query_choice import choose_queries, outcome
from covid_cmsf.report.ranked_stage import RankedStage
from covid_cmsf.report.stage_folder import ORDER, StageFolder

Ranked = tuple[StageFolder, RankedStage]


@dataclass
class Series:
    """`ids[: num_queries]` are all queries, then come neighbors that are shown. Labels are numbers of `classes`."""

    ids: list[str]
    labels: list[int]
    classes: list[str]
    num_queries: int
    shown: list[int]  # queries of the gallery
    num_neighbors: int
    stages: list[Ranked]
    places: list[list[int]]  # for each stage and query its row among the stage's queries, -1 where it lacks it
    number: dict[str, int] = field(repr=False)  # of a video, by its id

    def values(self) -> dict[str, Any]:
        """Who the videos are, and for each stage the rank of every query's first right neighbor, and its answer."""
        return {
            "ids": self.ids,
            "labels": self.labels,
            "classes": self.classes,
            "num_queries": self.num_queries,
            "shown": self.shown,
            "stages": [self._stage(number) for number in range(len(self.stages))],
        }

    def _stage(self, number: int) -> dict[str, Any]:
        stage, ranked = self.stages[number]
        ranks, answers = ranked.first_right.tolist(), ranked.videos.labels[ranked.found[:, 0]].tolist()
        places = self.places[number]
        return {
            "name": stage.name,
            "modality": stage.modality,
            "kind": stage.kind,
            "r1": ranked.r1,
            "how": ranked.how,
            "first_right": [ranks[place] if place >= 0 else None for place in places],
            "answer": [answers[place] if place >= 0 else None for place in places],
        }

    def neighbors(self) -> list[dict[str, list[int]]]:
        """For each stage, flat: the neighbors of each shown query (numbers of videos, -1 none), cosines times 1000."""
        return [self._found(number) for number in range(len(self.stages))]

    def _found(self, number: int) -> dict[str, list[int]]:
        _, ranked = self.stages[number]
        found: list[int] = []
        similarity: list[int] = []
        for query in self.shown:
            place, k = self.places[number][query], self.num_neighbors
            rows = ranked.found[place, :k].tolist() if place >= 0 else []
            values = (1000 * ranked.similarity[place, :k]).round().int().tolist() if place >= 0 else []
            found += [self.number[ranked.videos.ids[row]] for row in rows] + [-1] * (k - len(rows))
            similarity += values + [0] * (k - len(rows))
        return {"found": found, "similarity": similarity}

    def maps(self) -> list[dict[str, Any]]:
        """For each stage the places of all queries, by method; None where a stage lacks a query."""
        return [self._map(number) for number in range(len(self.stages))]

    def _map(self, number: int) -> dict[str, Any]:
        _, ranked = self.stages[number]
        methods = {"pca": ranked.pca, **({"umap": ranked.umap} if ranked.umap is not None else {})}
        columns = {}
        for name, places in methods.items():
            scaled = (places / places.abs().max().clamp_min(1e-12)).tolist()
            for axis, letter in enumerate("xy"):
                columns[f"{name}_{letter}"] = [
                    round(scaled[place][axis], 4) if place >= 0 else None for place in self.places[number]
                ]
        return {**columns, "shares": ranked.pca_shares}


def make_series(
    stages: Sequence[StageFolder],
    rank: Callable[[StageFolder], RankedStage],
    *,
    num_shown: int,
    num_neighbors: int,
    always: Sequence[str] = (),
    seed: int = 0,
) -> tuple[Series | None, list[str]]:
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
        own = {one.videos.ids[row]: place for place, row in enumerate(one.queries.tolist())}
        places.append([own.get(video_id, -1) for video_id in ids])
    labels = first.videos.labels[first.queries].tolist()
    classes = max((one.videos.class_names for _, one in ranked), key=len)
    wanted = [ids.index(video_id) for video_id in dict.fromkeys(always) if video_id in ids]
    shown = choose_queries(labels, _kinds(ranked, places), num_shown, always=wanted, seed=seed)
    series = Series(ids, labels, [*classes], len(ids), shown, num_neighbors, ranked, places, {})
    _add_neighbors_(series)
    return series, notes


def _kinds(ranked: Sequence[Ranked], places: Sequence[list[int]]) -> list[str]:
    """What became of each query between the first stage of a modality and its last round, for all modalities."""
    words = [""] * len(places[0])
    for modality in dict.fromkeys(stage.modality for stage, _ in ranked):
        before, after = before_and_after([stage for stage, _ in ranked], modality)
        for query in range(len(words)):
            hits = [
                places[n][query] >= 0 and int(ranked[n][1].first_right[places[n][query]]) == 1 for n in (before, after)
            ]
            words[query] += f" {outcome(hits[0], hits[1])}"
    return words


def before_and_after(stages: Sequence[StageFolder], modality: str | None) -> tuple[int, int]:
    """Numbers of the first stage of a modality and of its last round (without any: of its last trained stage)."""
    mine = [number for number, stage in enumerate(stages) if stage.modality == modality]
    rounds = [number for number in mine if stages[number].kind == "round"]
    trained = [number for number in mine if stages[number].kind != "baseline"]
    return mine[0], (rounds or trained or mine)[-1]


def _add_neighbors_(series: Series) -> None:
    """Gives a number to every video that is a neighbor of a shown query."""
    series.number.update({video_id: number for number, video_id in enumerate(series.ids)})
    for (_, ranked), places in zip(series.stages, series.places, strict=True):
        for query in series.shown:
            if places[query] < 0:
                continue
            for row in ranked.found[places[query], : series.num_neighbors].tolist():
                video_id = ranked.videos.ids[row]
                if video_id not in series.number:
                    series.number[video_id] = len(series.ids)
                    series.ids.append(video_id)
                    series.labels.append(int(ranked.videos.labels[row]))
