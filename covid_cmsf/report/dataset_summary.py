"""Summarize the clips for the section `Data`: counts, sizes, samples and failures."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.maintenance import summarize
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.report.provenance import shell_command

NUM_SAMPLES = 24
MAX_FAILURES = 200  # listed
MAX_CLASSES = 400  # listed


def summarize_dataset(clips: Clips) -> dict[str, Any]:
    """Return counts, sizes, hours and motion of a clip store; for other formats only counts."""
    values: dict[str, Any] = {
        "kind": type(clips).__name__,
        "modalities": list(clips.modalities),
        "is_image": clips.is_image,
    }
    if not isinstance(clips, ClipStore):
        return {**values, **_count_videos(clips)}
    values |= {"store_info": clips.info.model_dump(mode="json")}
    failures = clips.failures
    values |= {"failures": [asdict(one) for one in failures[:MAX_FAILURES]], "num_failures": len(failures)}
    try:
        summary = asdict(summarize(clips))
    except (ValueError, OSError) as error:
        return {
            **values,
            **_count_videos(clips),
            "problem": str(error),
            "check": shell_command(["covid-cmsf", "clips", "check", str(clips.path)]),
        }
    summary["classes"] = dict(list(summary["classes"].items())[:MAX_CLASSES])
    return {**values, **summary}


def sample_records(records: Sequence[ClipRecord], number: int = NUM_SAMPLES) -> list[ClipRecord]:
    """Return the first video of each class, then the second, ...; of many classes evenly spaced ones."""
    by_class: dict[str, list[ClipRecord]] = {}
    for record in records:
        by_class.setdefault(record.class_name, []).append(record)
    names = sorted(by_class)
    if len(names) > number:
        names = [names[i * len(names) // number] for i in range(number)]
    chosen: list[ClipRecord] = []
    round_index = 0
    while len(chosen) < number and any(len(by_class[name]) > round_index for name in names):
        chosen += [by_class[name][round_index] for name in names if len(by_class[name]) > round_index]
        round_index += 1
    return sorted(chosen[:number], key=lambda record: record.video_id)


def _count_videos(clips: Clips) -> dict[str, Any]:
    subsets: dict[str, dict[str, int]] = {}
    classes: dict[str, dict[str, dict[str, int]]] = {}
    for split, subset_of in clips.splits.items():
        counts = subsets.setdefault(split, {})
        for record in clips.records:
            subset = subset_of.get(record.video_id, "none")
            counts[subset] = counts.get(subset, 0) + 1
            class_counts = classes.setdefault(record.class_name, {}).setdefault(split, {})
            class_counts[subset] = class_counts.get(subset, 0) + 1
    return {
        "num_videos": len(clips.records),
        "num_sources": len({record.source for record in clips.records}),
        "num_frames": sum(record.num_frames for record in clips.records),
        "subsets": subsets,
        "classes": dict(sorted(classes.items())[:MAX_CLASSES]),
    }
