"""Checks of clips before long work: they exist, have the modalities, and are long enough."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.factory import open_clips
from covid_cmsf.clips.records import ClipRecord, FlowInfo, get_column
from covid_cmsf.clips.sampling import clip_span
from covid_cmsf.preflight import Problem
from covid_cmsf.views.modalities import Modality

OpenClips = Callable[[str], Clips]
PADDED_FRACTION = 0.1  # warn when more of the videos are shorter than a clip


def clips_opener() -> OpenClips:
    """Return `open_clips` that opens each address once, with advice where there are no clips."""

    @cache
    def opened(address: str) -> Clips:
        try:
            return open_clips(address)
        except FileNotFoundError as error:
            if not str(error).startswith("no clips at"):
                raise
            raise FileNotFoundError(
                f"{error}: name them with --clips CLIPS; `covid-cmsf preprocess` makes a clip store of videos, "
                "`make demo` that of the demo"
            ) from None

    return opened


def check_modalities(clips: Clips, modalities: Sequence[Modality], *, address: str) -> list[Problem]:
    """Check that the clips have what is read from them."""
    moving = [modality.name for modality in modalities if not modality.single_frame]
    if clips.is_image and moving:
        return [
            Problem(f"{address} has images, not videos: modality {moving[0]} needs several frames; use modality=frame")
        ]
    stored = {one.stored_modality: one.name for one in modalities if one.stored_modality not in clips.modalities}
    wanted = ",".join(dict.fromkeys([*clips.modalities, *stored]))
    return [
        Problem(
            f"{address} has no {missing}, which modality {name} needs (it has {', '.join(clips.modalities)}); "
            f"`covid-cmsf preprocess --modalities {wanted}` stores all of them"
        )
        for missing, name in stored.items()
    ]


def other_flow(trained: FlowInfo | None, clips: Clips, modality: Modality, *, address: str) -> str:
    """Say that clips have flow of another algorithm than a network was trained on; empty if not, or if unknown."""
    given = clips.info.origin_of(modality.stored_modality) if clips.info is not None and modality.is_flow else None
    if trained is None or given is None or trained.algorithm == given.algorithm:
        return ""
    return f"was trained on flow by {trained.algorithm}, and {address} has flow by {given.algorithm}"


def check_clip_length(
    records: Sequence[ClipRecord], modalities: Sequence[Modality], *, length: int, stride: int, pad_mode: str
) -> list[Problem]:
    """Check that the videos are as long as a clip; a shorter one is padded with copies of its frames."""
    span = clip_span(length, stride)
    moving = [modality for modality in modalities if not modality.single_frame]
    if not moving or not len(records):
        return []
    frames = num_usable_frames_of(records, moving)
    short = int((frames < span).sum())
    clip = f"a clip spans {span} frames (length {length}, stride {stride})"
    if short == len(frames) and pad_mode == "pad":
        return [
            Problem(
                f"{clip}, and the longest of {len(frames):,} videos has {frames.max()}: every clip would begin with "
                "copies of its first frame; use a smaller views.length or views.stride, or views.pad_mode=loop"
            )
        ]
    if short > PADDED_FRACTION * len(frames):
        repeated = "first frame is repeated" if pad_mode == "pad" else "frames are looped"
        return [Problem(f"{clip}; {short:,} of {len(frames):,} videos are shorter: their {repeated}", "warning")]
    return []


def num_usable_frames_of(records: Sequence[ClipRecord], modalities: Sequence[Modality]) -> NDArray[np.int64]:
    """Return `num_usable_frames` of all records, without making an object of each."""
    frames, flow = (np.array(get_column(records, name), dtype=np.int64) for name in ("num_frames", "num_flow"))
    usable = frames - 1 if any(modality.frame_difference for modality in modalities) else frames
    return np.minimum(usable, flow) if any(one.is_flow for one in modalities) else usable
