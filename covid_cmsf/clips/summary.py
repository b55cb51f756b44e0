"""What is in a clip store: counts, sizes, hours, motion."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covid_cmsf.clips.store import ClipStore
from covid_cmsf.clips.store_info import clip_path


@dataclass(frozen=True)
class StoreSummary:
    """The figures that `clips info` prints; `parts` counts videos by split and part, `classes` by class as well."""

    num_videos: int
    num_sources: int
    num_failures: int
    num_frames: int
    hours: float
    frame_sizes: dict[str, int]  # "320x240": videos
    bytes: dict[str, int]  # modality: bytes on disk
    parts: dict[str, dict[str, int]]  # split: {part: videos}
    classes: dict[str, dict[str, dict[str, int]]]  # class: {split: {part: videos}}
    flow: dict[str, float] | None


def summarize(store: ClipStore, *, num_sampled: int = 20) -> StoreSummary:
    """Counts everything; the motion is measured on `num_sampled` videos drawn with a fixed seed."""
    records = store.records
    part_of = {
        name: {r.video_id: split.get(r.video_id, "none") for r in records} for name, split in store.splits.items()
    }
    classes: dict[str, dict[str, dict[str, int]]] = {}
    for record in records:
        by_split = classes.setdefault(record.class_name, {name: {} for name in part_of})
        for name, parts in part_of.items():
            part = parts[record.video_id]
            by_split[name][part] = by_split[name].get(part, 0) + 1
    return StoreSummary(
        num_videos=len(records),
        num_sources=len({record.source for record in records}),
        num_failures=len(store.failures),
        num_frames=sum(record.num_frames for record in records),
        hours=sum(record.num_frames / record.fps for record in records) / 3600,
        frame_sizes=dict(Counter(f"{record.width}x{record.height}" for record in records).most_common()),
        bytes={
            modality: sum(_size(clip_path(store.path, modality, record.video_id)) for record in records)
            for modality in store.info.modalities
        },
        parts={name: dict(sorted(Counter(parts.values()).items())) for name, parts in part_of.items()},
        classes=dict(sorted(classes.items())),
        flow=flow_statistics(store, num_videos=num_sampled) if store.info.flow is not None and records else None,
    )


def _size(path: Path) -> int:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; `covid-cmsf clips check` lists all faults")
    return path.stat().st_size


def flow_statistics(store: ClipStore, *, num_videos: int, seed: int = 0) -> dict[str, float]:
    """Motion in a sample of videos, eight frames each: mean magnitude in pixels, share of components at the bound."""
    chosen = np.random.default_rng(seed).permutation(len(store.records))[:num_videos]
    magnitudes, clipped = [], []
    for index in chosen:
        record = store.records[int(index)]
        numbers = np.linspace(0, record.num_flow - 1, min(8, record.num_flow)).astype(int).tolist()
        flow = store.read(record, "flow", numbers)
        magnitudes.append(float(flow.square().sum(1).sqrt().mean()))
        clipped.append(float((flow.abs() > store.flow_bound * 0.99).float().mean()))
    return {
        "num_videos": len(chosen),
        "mean_magnitude_px": float(np.mean(magnitudes)),
        "clipped_share": float(np.mean(clipped)),
    }
