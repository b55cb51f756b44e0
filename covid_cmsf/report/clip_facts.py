"""The section about the data: what the clip store holds, which videos to show of it, what was set aside."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from covid_cmsf.clips.interface import Clips
from covid_cmsf.clips.manifest import ClipRecord
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.clips.summary import summarize

NUM_SAMPLES = 24
MOST_FAILURES = 200  # listed
MOST_CLASSES = 400  # listed


def clip_facts(clips: Clips) -> dict[str, Any]:
    """Counts, sizes, hours and motion of a clip store; of other collections what their records tell."""
    facts: dict[str, Any] = {"kind": type(clips).__name__, "modalities": list(clips.modalities), "still": clips.still}
    if not isinstance(clips, ClipStore):
        return {**facts, **_counted(clips)}
    facts |= {"made": clips.info.model_dump(mode="json")}
    failures = clips.failures
    facts |= {"failures": [asdict(one) for one in failures[:MOST_FAILURES]], "num_failures": len(failures)}
    try:
        summary = asdict(summarize(clips))
    except (ValueError, OSError) as error:
        return {**facts, **_counted(clips), "problem": str(error)}
    summary["classes"] = dict(list(summary["classes"].items())[:MOST_CLASSES])
    return {**facts, **summary}


def sample_records(records: Sequence[ClipRecord], number: int = NUM_SAMPLES) -> list[ClipRecord]:
    """The first video of each class, then the second, and so on; of many classes evenly spread ones."""
    by_class: dict[str, list[ClipRecord]] = {}
    for record in records:
        by_class.setdefault(record.class_name, []).append(record)
    names = sorted(by_class)
    if len(names) > number:
        names = [names[i * len(names) // number] for i in range(number)]
    chosen: list[ClipRecord] = []
    turn = 0
    while len(chosen) < number and any(len(by_class[name]) > turn for name in names):
        chosen += [by_class[name][turn] for name in names if len(by_class[name]) > turn]
        turn += 1
    return sorted(chosen[:number], key=lambda record: record.video_id)


def _counted(clips: Clips) -> dict[str, Any]:
    parts: dict[str, dict[str, int]] = {}
    classes: dict[str, dict[str, dict[str, int]]] = {}
    for split, part_of in clips.splits.items():
        counts = parts.setdefault(split, {})
        for record in clips.records:
            part = part_of.get(record.video_id, "none")
            counts[part] = counts.get(part, 0) + 1
            of_class = classes.setdefault(record.class_name, {}).setdefault(split, {})
            of_class[part] = of_class.get(part, 0) + 1
    return {
        "num_videos": len(clips.records),
        "num_sources": len({record.source for record in clips.records}),
        "num_frames": sum(record.num_frames for record in clips.records),
        "parts": parts,
        "classes": dict(sorted(classes.items())[:MOST_CLASSES]),
    }
