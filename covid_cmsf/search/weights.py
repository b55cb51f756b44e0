"""Weights of the modalities in `fused`: the measured default, and what users give."""

from collections.abc import Collection

# What is added to an image network (weight 1), best first. Chosen on one part of the sources of ucf101-ten, confirmed
# on the other (docs/results/search-fusion.md). More than one was not shown to help, and large weights of learned
# encoders, which the first part had preferred, did not hold on the other.
BESIDE_IMAGE = {"motion": 0.3, "flow": 0.2, "rgb": 0.2, "color": 0.1}


def default_weights(names: Collection[str]) -> dict[str, float]:
    """Return the measured weights of entries in `fused`; empty, which means equal ones, without an image network.

    An entry with weight 0 is left out of `fused`; it can still be asked for by name.
    """
    if "image" not in names:
        return {}
    best = next((name for name in BESIDE_IMAGE if name in names), None)
    return {name: 1.0 if name == "image" else BESIDE_IMAGE[name] if name == best else 0.0 for name in names}


def parse_weights(text: str) -> dict[str, float]:
    """Return the weights of `fused` that a text such as image=1,motion=0.3 gives; entries without one are left out."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            weight = float(value)
        except ValueError:
            weight = -1.0
        if not name or name in weights or not 0 <= weight < float("inf"):
            raise ValueError(
                f"{part.strip()!r} in {text!r}: write every NAME=WEIGHT once, with weights of 0 or more, "
                "such as image=1,motion=0.3"
            )
        weights[name] = weight
    if sum(weights.values()) <= 0:
        raise ValueError(f"{text!r}: at least one weight must be above 0")
    return weights
