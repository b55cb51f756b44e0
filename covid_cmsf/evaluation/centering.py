"""Features as retrieval compares them: minus a mean, then scaled to unit length."""

# G gallery rows, Q queries, D feature

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

Centering = Literal["train", "own", "none"]
BY_PROTOCOL: dict[str, Centering] = {"clean": "train", "coclr": "own"}


def choose_centering(name: str | None, protocol: str) -> Centering:
    """The named way, or the protocol's own."""
    if name is None:
        return BY_PROTOCOL[protocol]
    if name not in get_args(Centering):
        raise ValueError(f"unknown centering {name!r}; choose from {', '.join(get_args(Centering))}")
    return name  # type: ignore[return-value]


def comparable(gallery: Tensor, queries: Tensor, centering: Centering) -> tuple[Tensor, Tensor]:
    """(G, D) and (Q, D) as unit vectors in fp32.

    `train` subtracts the gallery's mean from both, so a query's result does not depend on the other queries. `own`
    subtracts from each set its own mean, as CoCLR does. Means are taken in float64.
    """
    gallery, queries = gallery.double(), queries.double()
    mean = gallery.mean(0)
    if centering == "own":
        gallery, queries = gallery - mean, queries - queries.mean(0)
    elif centering == "train":
        gallery, queries = gallery - mean, queries - mean
    return F.normalize(gallery, dim=1).float(), F.normalize(queries, dim=1).float()
