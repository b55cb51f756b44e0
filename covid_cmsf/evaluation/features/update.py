"""Bring a features file up to date: videos that were added or changed are embedded, all others keep their rows.

A row is kept if it was computed with the same weights and protocol, on the same kind of device, from a video file with
the same content. Convolutions of another batch can sum in another order, so a file that was extended may differ in the
last bits from one that was extracted at once.
"""

# N videos, W windows, D feature

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import write_split
from covid_cmsf.evaluation.features.extract import BATCH_SIZE, build_provenance, extract_features
from covid_cmsf.evaluation.features.file import Features, Provenance, load_features, save_features
from covid_cmsf.evaluation.features.inference import video_features
from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.subsets import UNLABELED, SplitVideos, VideoTable, load_split

SAME = ("weights_sha256", "eval_protocol", "precision", "device", "batch_size")  # of two files whose rows can be mixed
Rows = dict[str, tuple[Tensor, Tensor]]  # {video id: windows (W, D), starts (W,)}


def update_features(
    eval_model: EvalModel,
    clips: Clips,
    out: Path,
    *,
    eval_protocol: EvalProtocol,
    split: str,
    known: Sequence[Path] = (),
    labels: Mapping[str, str] | None = None,
    num_workers: int = 0,
    device: torch.device | str = "cpu",
    on_video: Callable[[], None] = lambda: None,
) -> tuple[Features, int]:
    """Write the features of all videos of a split to `out`; return them and how many videos were embedded.

    Args:
        eval_model: the network.
        clips: where the videos are.
        out: features file to write, or to bring up to date.
        eval_protocol: windows and size.
        split: of the clips, or a CSV file.
        known: other features files whose rows may be used, such as those of a stage of a plan.
        labels: {video id: class}; default: those of the clips.
        num_workers: processes that decode.
        device: where the network runs.
        on_video: called after every video that is embedded.
    """
    split_videos = load_split(clips, split)
    provenance = build_provenance(
        eval_model,
        clips,
        split_videos,
        eval_protocol,
        out,
        batch_size=BATCH_SIZE,
        device=torch.device(device),
        precision="fp32",
    )
    files = [loaded for path in (out, *known) if (loaded := _load(path)) is not None]
    table = VideoTable.from_records(split_videos.records, split_videos.subsets)
    table = table if labels is None else _with_labels(table, labels)
    if files and files[0].provenance.fingerprint == provenance.fingerprint and _same_labels(files[0].videos, table):
        return files[0], 0
    rows: Rows = {}
    for features in reversed(files):
        rows |= _usable_rows(features, provenance, _contents(table))
    skipped: dict[str, tuple[str, str, str]] = {entry[0]: entry for entry in split_videos.missing}
    missing = {name: subset for name, subset in zip(table.ids, table.subsets, strict=True) if name not in rows}
    new_file, new_split = out.with_name(f".{out.name}.new"), out.with_name(f".{out.name}.csv")
    if missing:
        write_split(new_split, missing)
        new = extract_features(
            eval_model,
            clips,
            new_file,
            eval_protocol=eval_protocol,
            split=str(new_split),
            num_workers=num_workers,
            device=device,
            replace=True,
            on_video=on_video,
        )
        rows |= _rows(new)
        skipped |= {entry[0]: entry for entry in new.skipped}
    features = _assemble(rows, split_videos, table, provenance, tuple(skipped.values()))
    save_features(out, features)
    new_file.unlink(missing_ok=True)
    new_split.unlink(missing_ok=True)
    return features, len(missing)


def _load(path: Path) -> Features | None:
    """Return a features file; None if there is none, or it is damaged: then it is written anew."""
    try:
        return load_features(path)
    except (ValueError, OSError):
        return None


def _with_labels(table: VideoTable, labels: Mapping[str, str]) -> VideoTable:
    """Return the table with these classes, numbered in their order; a video without one has no label."""
    names = tuple(sorted({labels[name] for name in table.ids if name in labels}))
    numbers = {name: number for number, name in enumerate(names)}
    values = [numbers[labels[name]] if name in labels else UNLABELED for name in table.ids]
    return replace(table, labels=torch.tensor(values, dtype=torch.int64), class_names=names)


def _same_labels(first: VideoTable, second: VideoTable) -> bool:
    return _named_labels(first) == {name: _named_labels(second)[name] for name in first.ids}


def _named_labels(table: VideoTable) -> dict[str, str]:
    names = [table.class_names[label] if label >= 0 else "" for label in table.labels.tolist()]
    return dict(zip(table.ids, names, strict=True))


def _contents(table: VideoTable) -> dict[str, int]:
    """Return {video id: code of the original file's content}; videos whose content is unknown are left out."""
    codes = [] if table.contents is None else table.contents.tolist()
    return {name: code for name, code in zip(table.ids, codes, strict=bool(codes)) if code}


def _usable_rows(features: Features, provenance: Provenance, contents: Mapping[str, int]) -> Rows:
    old = features.provenance
    if any(getattr(old, name) != getattr(provenance, name) for name in SAME):
        return {}
    before = _contents(features.videos)
    return {name: row for name, row in _rows(features).items() if contents.get(name, 0) == before.get(name, -1)}


def _rows(features: Features) -> Rows:
    """Return the windows of every video; a file has the windows of a video in order."""
    order = torch.argsort(features.window_videos, stable=True)
    counts = torch.bincount(features.window_videos, minlength=len(features.videos)).tolist()
    windows, starts = features.windows[order].split(counts), features.window_starts[order].split(counts)
    return dict(zip(features.videos.ids, zip(windows, starts, strict=True), strict=True))


def _assemble(
    rows: Rows,
    split_videos: SplitVideos,
    table: VideoTable,
    provenance: Provenance,
    skipped: tuple[tuple[str, str, str], ...],
) -> Features:
    readable = [number for number, name in enumerate(table.ids) if name in rows]
    if not readable:
        raise ValueError(f"none of {len(split_videos.records)} videos could be read")
    chosen = [rows[table.ids[number]] for number in readable]
    windows = torch.cat([one[0] for one in chosen])
    window_videos = torch.repeat_interleave(
        torch.arange(len(chosen)), torch.tensor([len(one[0]) for one in chosen], dtype=torch.int64)
    )
    return Features(
        videos=table.take(torch.tensor(readable)),
        features=video_features(windows, window_videos, len(readable)),
        windows=windows,
        window_videos=window_videos,
        window_starts=torch.cat([one[1] for one in chosen]),
        provenance=provenance,
        skipped=skipped,
    )
