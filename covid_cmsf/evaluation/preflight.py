"""Checks before features are extracted and measured: `extract`, `evaluate` from a checkpoint, and stages of plans."""

from dataclasses import replace
from pathlib import Path

from covid_cmsf.clips.base import Clips
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.subsets import UNLABELED, VAL_FRACTION, VideoTable, load_split, split_fit_val
from covid_cmsf.evaluation.retrieval import select_subsets
from covid_cmsf.exit_codes import USER_ERRORS
from covid_cmsf.preflight import Problem, check_disk, check_memory
from covid_cmsf.views.modalities import Modality
from covid_cmsf.views.preflight import check_clip_length, check_modalities

FLOAT_BYTES = 4


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
