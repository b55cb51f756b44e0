"""Features as retrieval compares them: minus a mean, then scaled to unit length."""

# G gallery rows, Q queries, D feature

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

Centring = Literal["train", "own", "none"]
BY_PROTOCOL: dict[str, Centring] = {"clean": "train", "coclr": "own"}


def choose_centring(name: str | None, protocol: str) -> Centring:
    """The named way, or the protocol's own."""
    if name is None:
        return BY_PROTOCOL[protocol]
    if name not in get_args(Centring):
        raise ValueError(f"unknown centring {name!r}; choose from {', '.join(get_args(Centring))}")
    return name  # type: ignore[return-value]


def comparable(gallery: Tensor, queries: Tensor, centring: Centring) -> tuple[Tensor, Tensor]:
    """(G, D) and (Q, D) as unit vectors in fp32.

    `train` subtracts the gallery's mean from both, so a query's result does not depend on the other queries. `own`
    subtracts from each set its own mean, as CoCLR does. Means are taken in float64.
    """
    gallery, queries = gallery.double(), queries.double()
    mean = gallery.mean(0)
    if centring == "own":
        gallery, queries = gallery - mean, queries - queries.mean(0)
    elif centring == "train":
        gallery, queries = gallery - mean, queries - mean
    return F.normalize(gallery, dim=1).float(), F.normalize(queries, dim=1).float()
