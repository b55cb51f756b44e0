"""Checks before features are extracted and measured: `extract`, `evaluate`, and stages of plans."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from covid_cmsf.clips.base import Clips
from covid_cmsf.evaluation.features.file import Features, load_features
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.stale import stale_reason
from covid_cmsf.evaluation.features.subsets import (
    UNLABELED,
    VAL_FRACTION,
    VideoTable,
    load_split,
    split_fit_val,
    subset_indices,
)
from covid_cmsf.evaluation.overlap import check_overlap
from covid_cmsf.evaluation.retrieval import select_subsets
from covid_cmsf.exit_codes import USER_ERRORS
from covid_cmsf.preflight import Problem, check_disk, check_memory, existing_parent, raise_problems
from covid_cmsf.views.modalities import Modality
from covid_cmsf.views.preflight import check_clip_length, check_modalities

FLOAT_BYTES = 4
COPIES = 2  # of a features file in memory: its content, and what is centered, normalized or standardized
RESULT_BYTES = 1e6  # a JSON file


def check_extraction(
    clips: Clips,
    *,
    address: str,
    split: str | None,
    modality: Modality,
    length: int,
    stride: int,
    num_windows: int,
    num_features: int,
    out: Path | None,
) -> list[Problem]:
    """Check the clips, the split, the modality, the clip length, and the space for the features (None: no file)."""
    missing = check_modalities(clips, [modality], address=address)
    if missing:
        return missing
    try:
        records = load_split(clips, split).records
    except USER_ERRORS as error:
        return [Problem(str(error))]
    needed = features_bytes(len(records), num_windows=num_windows, num_features=num_features)
    problems = [  # a network may be evaluated on shorter videos than it was trained on
        replace(one, severity="warning")
        for one in check_clip_length(records, [modality], length=length, stride=stride, pad_mode="pad")
    ]
    problems += check_memory(needed, f"the features of {len(records):,} videos")
    return problems if out is None else [*problems, *check_disk(out.parent, needed, f"the features of {address}")]


def check_protocol(
    clips: Clips, eval_protocol: EvalProtocol, *, address: str, split: str | None, num_features: int, out: Path | None
) -> list[Problem]:
    """Check an extraction by a protocol."""
    return check_extraction(
        clips,
        address=address,
        split=split,
        modality=eval_protocol.resolve_modality(),
        length=eval_protocol.length,
        stride=eval_protocol.stride,
        num_windows=eval_protocol.num_windows,
        num_features=num_features,
        out=out,
    )


def features_bytes(num_videos: int, *, num_windows: int, num_features: int) -> float:
    """Return the size of a features file: one row per window and one per video."""
    return float(num_videos * (num_windows + 1) * num_features * FLOAT_BYTES)


def split_table(clips: Clips, split: str | None) -> VideoTable:
    """Return the table of a split's videos, as their features will have it."""
    videos = load_split(clips, split)
    return VideoTable.from_records(videos.records, videos.subsets)


def is_labeled(videos: VideoTable) -> bool:
    """Tell whether all videos have a label: else only what needs none is measured."""
    return len(videos) > 0 and not bool((videos.labels == UNLABELED).any())


def check_measurements(
    videos: VideoTable, *, gallery: str, query: str, allow_shared_sources: bool, linear: bool
) -> list[Problem]:
    """Check that retrieval and (with validation) a linear probe can be measured on these labeled videos."""
    try:
        pair = select_subsets(
            videos, gallery, query, allow_shared_sources=allow_shared_sources, val_fraction=VAL_FRACTION, seed=0
        )
        if linear:
            split_fit_val(videos.take(pair.gallery))
    except ValueError as error:
        return [Problem(str(error))]
    return []


# `evaluate` on features files


def load_checked(
    paths: Sequence[Path],
    *,
    gallery: str = "",
    query: str = "",
    num_neighbors: Sequence[int] = (),
    linear: bool = False,
    allow_shared_sources: bool = False,
    allow_stale: bool = False,
    val_fraction: float = VAL_FRACTION,
    seed: int = 0,
    out: Path | None = None,
) -> list[Features]:
    """Read features files that are to be measured; PreflightError with everything that would stop it later.

    Without `gallery` and `query`, no labels are needed. `linear`: a probe is fitted, whose penalty is chosen on
    validation sources (not by protocol coclr). `out` is the file of the result.
    """
    problems = [] if out is None else check_result_file(out)
    loaded: list[Features] = []
    for path in paths:
        memory = check_memory(COPIES * path.stat().st_size if path.is_file() else 0, f"the features of {path}")
        problems += memory
        if memory:
            continue
        try:
            features = load_features(path)
        except USER_ERRORS as error:
            problems.append(Problem(str(error)))
            continue
        loaded.append(features)
        if (reason := stale_reason(path, features.provenance)) is not None:
            advice = "" if allow_stale else "; extract it again, or go on with --allow-stale"
            problems.append(
                Problem(f"{path} is stale: {reason}{advice}", severity="warning" if allow_stale else "error")
            )
        if gallery or query:
            problems += check_subsets(
                features.videos, gallery, query, num_neighbors=num_neighbors,
                linear=linear and features.protocol != "coclr", allow_shared_sources=allow_shared_sources,
                val_fraction=val_fraction, seed=seed,
            )  # fmt: skip
        elif num_neighbors and max(num_neighbors) >= len(features.videos):
            problems.append(Problem(f"k = {max(num_neighbors)}: {path} has {len(features.videos)} videos"))
    raise_problems(problems)
    return loaded


def check_result_file(path: Path) -> list[Problem]:
    """Check that the file of a result can be written."""
    if path.is_dir():
        return [Problem(f"{path} is a folder; name a JSON file for the result")]
    if not path.parent.is_dir():
        return [Problem(f"no folder {path.parent} to write {path.name} into")]
    if not os.access(path.parent, os.W_OK):
        return [Problem(f"{path.parent} can't be written to, where {path.name} would be")]
    return check_disk(path.parent, RESULT_BYTES, "the result files")


def check_out_folder(folder: Path, needed: float, what: str) -> list[Problem]:
    """Check that a folder, which need not exist yet, can be written to and has room for `needed` bytes of `what`."""
    parent = existing_parent(folder)
    if not parent.is_dir():
        return [Problem(f"{parent} is a file, where a folder would be")]
    if not os.access(parent, os.W_OK):
        return [Problem(f"{parent} can't be written to, where {folder.name} would be")]
    return check_disk(folder, RESULT_BYTES + needed, what)


def check_subsets(
    videos: VideoTable,
    gallery: str,
    query: str,
    *,
    num_neighbors: Sequence[int],
    linear: bool,
    allow_shared_sources: bool,
    val_fraction: float,
    seed: int,
) -> list[Problem]:
    """Check both subsets, what they share, their classes, and k against the gallery."""
    problems: list[Problem] = []
    found = []
    for name in (gallery, query):
        try:
            found.append(subset_indices(videos, name, val_fraction=val_fraction, seed=seed))
        except ValueError as error:
            problems.append(Problem(str(error)))
    if len(found) < 2:
        return problems
    try:
        check_overlap(
            videos, *found, names=(gallery, query), allow_shared_sources=allow_shared_sources, warn=False
        )  # the measurement warns
    except ValueError as error:
        problems.append(Problem(str(error)))
    classes, tested = (set(videos.labels[indices].tolist()) for indices in found)
    if linear:
        problems += _check_classes(videos.take(found[0]), len(classes), gallery, val_fraction=val_fraction, seed=seed)
    if num_neighbors and max(num_neighbors) > len(found[0]):
        problems.append(
            Problem(f"k = {max(num_neighbors)} neighbors can't be chosen among the {len(found[0])} of {gallery!r}")
        )
    if unseen := tested - classes:
        problems.append(
            Problem(
                f"{len(unseen)} of the {len(tested)} classes of {query!r} have no video in {gallery!r}, for example "
                f"{videos.class_names[min(unseen)]!r}: their videos count as wrong",
                severity="warning",
            )
        )
    return problems


def _check_classes(
    videos: VideoTable, num_classes: int, gallery: str, *, val_fraction: float, seed: int
) -> list[Problem]:
    if num_classes < 2:
        return [Problem(f"all videos of {gallery!r} have the same label; a classifier needs at least two classes")]
    try:
        split_fit_val(videos, val_fraction=val_fraction, seed=seed)
    except ValueError as error:
        return [Problem(str(error))]
    return []
