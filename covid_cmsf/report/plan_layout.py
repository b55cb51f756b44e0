"""Where the stages of a plan stand in its picture: a column a step, a lane a modality, rounds where the lanes meet."""

from collections.abc import Sequence
from dataclasses import dataclass

from covid_cmsf.report.stage_folder import StageFolder


@dataclass(frozen=True)
class Node:
    """A stage at (column, row); rows count from the top over all lanes."""

    stage: str
    column: int
    row: int
    lane: int


@dataclass(frozen=True)
class Edge:
    """`how` is init or guide."""

    start: str
    end: str
    how: str


@dataclass(frozen=True)
class Layout:
    """Lanes have a name (the modality) and the number of their rows."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    lanes: tuple[tuple[str, int], ...]
    num_columns: int


def lay_out(stages: Sequence[StageFolder]) -> Layout:
    """All stages; those that need nothing are in column 0, others one to the right of the last that they need.

    In the first lane rounds stand at the bottom, in all others at the top, so that guides cross no other stage.
    """
    columns: dict[str, int] = {}
    for stage in stages:
        needs = [name for name in (stage.chosen.init, *stage.chosen.guides) if name in columns]
        columns[stage.name] = 1 + max((columns[name] for name in needs), default=-1)
    lanes = list(dict.fromkeys(stage.modality or "" for stage in stages))
    nodes: list[Node] = []
    heights: list[tuple[str, int]] = []
    top = 0
    for lane, name in enumerate(lanes):
        mine = [stage for stage in stages if (stage.modality or "") == name]
        rows = _rows([(columns[stage.name], _rank(stage)) for stage in mine])
        height = 1 + max(rows)
        for stage, row in zip(mine, rows, strict=True):
            placed = height - 1 - row if lane == 0 and len(lanes) > 1 else row
            nodes.append(Node(stage.name, columns[stage.name], top + placed, lane))
        heights.append((name, height))
        top += height
    edges = [Edge(stage.chosen.init, stage.name, "init") for stage in stages if stage.chosen.init in columns]
    edges += [Edge(guide, stage.name, "guide") for stage in stages for guide in stage.chosen.guides if guide in columns]
    return Layout(tuple(nodes), tuple(edges), tuple(heights), 1 + max(columns.values()))


def _rank(stage: StageFolder) -> int:
    """Rounds keep row 0 for themselves; starts and controls come after, baselines last."""
    return {"round": 0, "start": 1, "control": 1, "baseline": 2}[stage.kind]


def _rows(places: Sequence[tuple[int, int]]) -> list[int]:
    """A free row for each (column, lowest row wanted)."""
    lowest = min(rank for _, rank in places)
    taken: set[tuple[int, int]] = set()
    rows = [0] * len(places)
    for index in sorted(range(len(places)), key=lambda i: places[i][1]):
        column, row = places[index][0], places[index][1] - lowest
        while (column, row) in taken:
            row += 1
        taken.add((column, row))
        rows[index] = row
    return rows
