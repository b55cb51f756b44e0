"""Which images are train, val and test. Draws are stratified; they follow from ids and seed, not from row order."""

from collections.abc import Sequence

import numpy as np

from covid_cmsf.evaluation.transfer.datasets import PARTS, SplitRule


def split_images(
    ids: Sequence[str], labels: Sequence[int], pieces: Sequence[str], rule: SplitRule, *, seed: int = 0
) -> dict[str, str]:
    """{id: train, val or test}. `pieces` says where each image stands in the data set: train, val, test or all."""
    if len(set(ids)) != len(ids):
        raise ValueError("an image stands there twice")
    parts = dict(zip(ids, pieces, strict=True))
    wanted = set(PARTS) if rule.val is None else {"all"} if rule.learn is not None else {"train", "test"}
    if set(pieces) != wanted:
        raise ValueError(
            f"the images are in {', '.join(sorted(set(pieces)))}; this split needs {', '.join(sorted(wanted))}"
        )
    if rule.val is None:
        return parts
    for label, members in _by_class(ids, labels, pieces).items():
        shuffled = [members[i] for i in np.random.default_rng([seed, label]).permutation(len(members))]
        num_val = rule.val if isinstance(rule.val, int) else round(rule.val * len(members))
        num_learn = len(members) if rule.learn is None else rule.learn
        needed = num_val + 1 if rule.learn is None else num_learn + 1
        if len(members) < needed:
            raise ValueError(f"class {label} has {len(members)} images to draw from; the split needs {needed} at least")
        parts |= dict.fromkeys(shuffled[:num_val], "val")
        parts |= dict.fromkeys(shuffled[num_val:num_learn], "train")
        parts |= dict.fromkeys(shuffled[num_learn:], "test")
    return parts


def _by_class(ids: Sequence[str], labels: Sequence[int], pieces: Sequence[str]) -> dict[int, list[str]]:
    """The images that may be drawn (all that are not in a test set), by label, each class sorted by id."""
    classes: dict[int, list[str]] = {}
    for image, label, piece in sorted(zip(ids, labels, pieces, strict=True)):
        if piece != "test":
            classes.setdefault(label, []).append(image)
    return classes
