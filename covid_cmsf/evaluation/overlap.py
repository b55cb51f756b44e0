"""What the training and the test subset have in common, and what of it is an error.

| in both subsets | |
|---|---|
| a video | error: it would find itself |
| the same original file under two names | error, unless shared sources are allowed |
| clips of one source, in the same class | error, unless shared sources are allowed: siblings find each other |
| clips of one source, in different classes only | warning: a sibling is then a wrong answer |

The last line is the rule for HMDB-51: 133 films have clips in both subsets of the official split 1, never in one class.
"""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from covid_cmsf.evaluation.features.subsets import VideoTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Overlap:
    """How much two subsets have in common; all results record it."""

    num_shared_sources: int = 0  # sources in both, whatever their classes
    num_sibling_sources: int = 0  # of these, with clips of the same class in both
    num_identical_files: int = 0  # original files in both, under different names


def check_overlap(
    videos: VideoTable,
    first: Tensor,
    second: Tensor,
    *,
    names: tuple[str, str],
    allow_shared_sources: bool,
    warn: bool = True,
) -> Overlap:
    """Compare the indices of two subsets, called `names` in messages; ValueError for what is not allowed."""
    if len(shared := torch.isin(first, second).nonzero()):
        example = videos.ids[int(first[shared[0]])]
        raise ValueError(
            f"the subsets {names[0]!r} and {names[1]!r} have videos in common: a video would find itself, "
            f"for example {example!r}"
        )
    files = _identical_files(videos, first, second)
    sources = shared_sources(videos, first, second)
    siblings = _sibling_sources(videos, first, second, set(sources))
    advice = "Change the split, or allow it with --allow-shared-sources (in plans: evaluation.allow_shared_sources)"
    if files and not allow_shared_sources:
        raise ValueError(
            f"{len(files)} files are in both {names[0]!r} and {names[1]!r} under different names, for example "
            f"{files[0][0]!r} = {files[0][1]!r}: a video would find itself. {advice}; the result records it"
        )
    if siblings and not allow_shared_sources:
        raise ValueError(
            f"{len(siblings)} sources are in both {names[0]!r} and {names[1]!r} with clips of the same class, for "
            f"example {siblings[0]!r}: their clips would find each other. {advice}; the result records it"
        )
    if warn and len(sources) > len(siblings):
        logger.warning(
            "%d sources are in both %r and %r, in different classes", len(sources) - len(siblings), names[0], names[1]
        )
    return Overlap(len(sources), len(siblings), len(files))


def shared_sources(videos: VideoTable, first: Tensor, second: Tensor) -> list[str]:
    """Return the sorted sources that occur in both sets of indices."""
    in_first, in_second = ({videos.sources[i] for i in indices.tolist()} for indices in (first, second))
    return sorted(in_first & in_second)


def _sibling_sources(videos: VideoTable, first: Tensor, second: Tensor, shared: set[str]) -> list[str]:
    """Return the sorted sources of `shared` that have clips of the same class in both sets of indices."""
    labels = videos.labels.tolist()
    pairs = (
        {(videos.sources[i], labels[i]) for i in indices.tolist() if videos.sources[i] in shared}
        for indices in (first, second)
    )
    return sorted({source for source, _ in set.intersection(*pairs)})


def _identical_files(videos: VideoTable, first: Tensor, second: Tensor) -> list[tuple[str, str]]:
    """Return the ids of videos of both sets of indices that were made from the same file."""
    if videos.contents is None:
        return []
    hashes = videos.contents
    known = [indices[hashes[indices] != 0] for indices in (first, second)]
    known = [known[0][torch.isin(hashes[known[0]], hashes[known[1]])], known[1]]
    id_of = {int(hashes[i]): videos.ids[i] for i in known[1].tolist()}
    return [(videos.ids[i], id_of[int(hashes[i])]) for i in known[0].tolist()]
