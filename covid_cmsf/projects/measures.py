"""What a project's encoders are worth, in numbers that need no labels, and with labels where there are some."""

# N videos

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.label_free import NUM_NEIGHBORS, LabelFreeMeasures, label_free_measures
from covid_cmsf.evaluation.nearest import center_and_normalize, nearest

RANK_NEEDS = 3.0  # an effective rank below says that nearly all videos have the same vector


@dataclass(frozen=True)
class LabelRecall:
    """R@1 over all labeled videos: the nearest labeled video of another source has the same class; percent."""

    r1: float
    chance: float
    num_videos: int  # that were asked


@dataclass(frozen=True)
class EncoderMeasures:
    """The measures of one modality."""

    unlabeled: LabelFreeMeasures
    labeled: LabelRecall | None


def measure_encoders(features: Mapping[str, Features]) -> dict[str, EncoderMeasures]:
    """Measure every entry of an index (rgb, flow, image, motion); neighbors are compared with those of all others."""
    found = {}
    for name, one in features.items():
        others = {key: other for key, other in features.items() if key != name}
        k = min(NUM_NEIGHBORS, max(3, len(one.videos) // 10))  # ten of sixteen would agree by chance
        unlabeled = label_free_measures(one, list(others.values()), k=k)
        # By the names of the entries: a flow histogram and a flow network have the same modality.
        agreement = [replace(pair, modality=key) for key, pair in zip(others, unlabeled.agreement, strict=True)]
        found[name] = EncoderMeasures(replace(unlabeled, agreement=agreement), label_recall(one))
    return found


def label_recall(features: Features) -> LabelRecall | None:
    """Return R@1 among the labeled videos, each searched in those of other sources; None if fewer than two classes.

    The networks have seen these videos, without their labels. Chance is that of a random video of another source.
    """
    known = (features.videos.labels >= 0).nonzero().flatten()
    videos = features.videos.take(known)
    labels, sources = videos.labels, videos.sources
    sizes = Counter(sources)
    if len(labels.unique()) < 2 or len(sizes) < 2:
        return None
    unit, _ = center_and_normalize(features.features[known], features.features[:0], "train")
    depth = min(len(sources), max(sizes.values()) + 1)  # one of these is of another source
    found = nearest(unit, unit, depth)
    hits, chances = [], []
    class_sizes = Counter(labels.tolist())
    shared = Counter(zip(sources, labels.tolist(), strict=True))
    for number, row in enumerate(found.tolist()):
        other = next((one for one in row if sources[one] != sources[number]), None)
        label = int(labels[number])
        if other is None:
            continue
        hits.append(int(labels[other]) == label)
        candidates = len(sources) - sizes[sources[number]]
        chances.append((class_sizes[label] - shared[sources[number], label]) / candidates)
    return LabelRecall(100 * sum(hits) / len(hits), 100 * sum(chances) / len(chances), len(hits))


def describe(measures: EncoderMeasures) -> list[str]:
    """Return sentences about one encoder, for someone who has not read the documentation."""
    values = measures.unlabeled
    lines = []
    if values.window_r1 is not None:
        lines.append(
            f"{values.window_r1:.0f}% of the videos are recognized by another moment of theirs "
            f"(by chance: {_percent(values.window_chance)})"
        )
    if values.source_r1 is not None:
        lines.append(
            f"for {values.source_r1:.0f}% the nearest video is of the same source (by chance: "
            f"{_percent(values.source_chance)})"
        )
    for one in values.agreement:
        lines.append(
            f"{one.percent:.0f}% of a video's {one.k} nearest are also among {one.modality}'s "
            f"(by chance: {_percent(one.chance)})"
        )
    rank = f"the vectors use about {values.effective_rank:.0f} directions (effective rank)"
    if values.effective_rank < RANK_NEEDS:
        rank += ": nearly all videos look the same to it; do not trust its neighbors"
    lines.append(rank)
    if measures.labeled is not None:
        lines.append(
            f"labels: the nearest video of another source has the same class for {measures.labeled.r1:.1f}% of "
            f"{measures.labeled.num_videos} (by chance: {_percent(measures.labeled.chance)})"
        )
    return lines


def _percent(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.1f}%" if value >= 0.1 else "under 0.1%"
