"""Neighbors under wrong labels, figure 2 of the paper: whom does a constraint find when half of the labels are wrong?

For one label three rows: the neighbors, among images of that label, of a query that has it rightly; of a query that
has it wrongly; and random images of that label. If the constraint works, the first two rows look like their queries.
"""

# N images, D feature

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["correct", "wrong", "random"]


@dataclass(frozen=True)
class Shown:
    """One image of a row. `similarity` is the cosine to the query; None for random images."""

    name: str
    seen_label: int
    true_label: int
    similarity: float | None


@dataclass(frozen=True)
class GalleryRow:
    """A query, and who was found; `purity` is the share that has the query's true label (of `random`: the label's)."""

    kind: Kind
    query: Shown | None
    found: tuple[Shown, ...]
    purity: float


def gallery_rows(
    features: Tensor,
    seen: Tensor,
    true: Tensor,
    names: Sequence[str],
    *,
    label: int | None = None,
    num_found: int = 10,
    seed: int = 0,
) -> list[GalleryRow]:
    """The three rows for a label, by default one drawn by the seed. Features (N, D); labels (N,) seen and true."""
    draw = random.Random(seed)
    candidates = [one for one in sorted(set(seen.tolist()) - {-1}) if _usable(seen, true, one, num_found)]
    if label is None and not candidates:
        raise ValueError(f"no label has a right image, a wrong one and {num_found} others: is there any noise?")
    if label is not None and label not in candidates:
        raise ValueError(f"label {label} has no right image, no wrong one, or fewer than {num_found} others")
    chosen = draw.choice(candidates) if label is None else label
    members = (seen == chosen).nonzero().flatten()
    right, wrong = members[true[members] == chosen].tolist(), members[true[members] != chosen].tolist()
    unit = F.normalize(features.float(), dim=1)
    rows = []
    for kind, query in (("correct", draw.choice(right)), ("wrong", draw.choice(wrong))):
        others = members[members != query]
        similar = unit[others] @ unit[query]
        best = torch.argsort(-similar, stable=True)[:num_found]
        found = tuple(_shown(int(others[i]), seen, true, names, float(similar[i])) for i in best)
        mine = _shown(query, seen, true, names, None)
        rows.append(GalleryRow(kind, mine, found, _purity(found, mine.true_label)))  # type: ignore[arg-type]
    drawn = tuple(_shown(i, seen, true, names, None) for i in draw.sample(members.tolist(), num_found))
    return [*rows, GalleryRow("random", None, drawn, _purity(drawn, chosen))]


def as_values(rows: Sequence[GalleryRow], class_names: Sequence[str]) -> dict[str, Any]:
    """Plain values for a JSON file."""
    return {"class_names": list(class_names), "rows": [asdict(row) for row in rows]}


def _usable(seen: Tensor, true: Tensor, label: int, num_found: int) -> bool:
    members = true[seen == label]
    return len(members) > num_found and bool((members == label).any()) and bool((members != label).any())


def _shown(row: int, seen: Tensor, true: Tensor, names: Sequence[str], similarity: float | None) -> Shown:
    return Shown(names[row], int(seen[row]), int(true[row]), similarity)


def _purity(found: Sequence[Shown], label: int) -> float:
    return sum(one.true_label == label for one in found) / len(found)
