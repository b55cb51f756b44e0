"""The data set of a training run: key -> two views of a video. Everything random follows from the key."""

# T frames, C channels, H W pixels

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from covid_cmsf.clips.interface import Clips
from covid_cmsf.clips.manifest import ClipRecord
from covid_cmsf.clips.sampling import two_clips
from covid_cmsf.views.augmentation import preset
from covid_cmsf.views.batch import Sample, Views
from covid_cmsf.views.draws import ViewDraw, draw_view
from covid_cmsf.views.geometry import cut
from covid_cmsf.views.making import finish_view
from covid_cmsf.views.modalities import Modality
from covid_cmsf.views.pairing import ViewPlan, plan_pair
from covid_cmsf.views.settings import ViewSettings

MAX_REPLACEMENTS = 10  # videos tried in place of one that can't be read


@dataclass(frozen=True)
class Key:
    """Which sample: `position` is its place in the epoch's global order, so that repeats of a video differ."""

    epoch: int
    position: int
    video: int


class ViewDataset(Dataset[Sample]):
    """Two views of each video. `defer` leaves colors and normalization to the device (see `Batch.to`).

    `online` and `target` are the modalities of each view, by default all of the settings': what no network looks at
    is neither decoded nor augmented, and leaving it out does not change the rest.
    """

    def __init__(
        self,
        clips: Clips,
        records: Sequence[ClipRecord],
        settings: ViewSettings,
        *,
        seed: int,
        defer: bool = False,
        online: Sequence[str] | None = None,
        target: Sequence[str] | None = None,
    ) -> None:
        self.clips, self.settings, self.seed, self.defer = clips, settings, seed, defer
        self.modalities = settings.chosen()
        self._in_view = [
            [chosen for chosen in self.modalities if names is None or chosen.name in names]
            for names in (online, target)
        ]
        absent = [chosen.name for chosen in self.modalities if chosen.stored not in clips.modalities]
        if absent:
            raise ValueError(
                f"these clips have {', '.join(clips.modalities)}; there is nothing to read {absent[0]} from"
            )
        self.records = [record for record in records if usable_frames(record, self.modalities) >= 1]
        if not self.records:
            raise ValueError("no video has enough frames for these views")
        names = sorted({record.source for record in self.records})
        self._source_of = {name: number for number, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: Key) -> Sample:
        rng = np.random.default_rng([self.seed, key.epoch, key.position])
        video, fault = key.video, ""
        for _ in range(MAX_REPLACEMENTS):
            try:
                return self._sample(video, np.random.default_rng(rng.integers(2**63)), fault)
            except (ValueError, OSError) as error:
                fault = fault or f"{self.records[video].video_id}: {error}"
                video = int(rng.integers(len(self.records)))
        raise RuntimeError(f"{MAX_REPLACEMENTS} videos in a row could not be read; the first: {fault}")

    def _sample(self, video: int, rng: np.random.Generator, fault: str) -> Sample:
        record, settings = self.records[video], self.settings
        plans = plan_pair(settings.pairing, rng, num_clips=settings.num_clips)
        lengths = {"length": settings.length, "stride": settings.stride}
        numbers = two_clips(usable_frames(record, self.modalities), rng, short=settings.short, **lengths)
        stored = self._read(record, [numbers[plan.clip] for plan in plans], int(rng.integers(settings.length)))
        views, draws = [], []
        for view, plan in enumerate(plans):
            made, drawn = self._view(stored[view], plan, rng, self._in_view[view])
            views.append(made)
            draws.append(drawn)
        source, label = self._source_of[record.source], record.label
        return Sample(tuple(views), video, source, label, fault, tuple(draws) if self.defer else ())

    def _view(
        self, stored: Views, plan: ViewPlan, rng: np.random.Generator, wanted: Sequence[Modality]
    ) -> tuple[Views, dict[str, ViewDraw]]:
        """One view in the wanted modalities. With shared geometry all modalities start from the same dice."""
        made: Views = {}
        drawn: dict[str, ViewDraw] = {}
        dice = rng.integers(2**63)
        for chosen in self.modalities:
            if not self.settings.share_geometry:
                dice = rng.integers(2**63)
            if chosen not in wanted:
                continue
            codes = stored[chosen.name]
            size = self.settings.frame_size if chosen.single_frame else self.settings.size
            augmentation = preset(
                plan.preset, chosen.kind, size=size, scale=self.settings.crop, blur=self.settings.blur
            )
            height, width = codes.shape[-2:]
            draw = draw_view(augmentation, np.random.default_rng(dice), height=height, width=width)
            view = cut(codes, draw.geometry, augmentation.size)
            bound = self.clips.flow_bound
            made[chosen.name] = view if self.defer else finish_view(view, draw, chosen, flow_bound=bound)
            drawn[chosen.name] = draw
        return made, drawn

    def _read(self, record: ClipRecord, numbers: list[list[int]], single: int) -> list[Views]:
        """The stored frames of each view; what several views or modalities need is decoded once."""
        wanted: dict[str, set[int]] = {}
        for one, in_view in zip(numbers, self._in_view, strict=True):
            for chosen in in_view:
                wanted.setdefault(chosen.stored, set()).update(frames_of(chosen, one, single=single))
        decoded: dict[str, tuple[dict[int, int], Tensor]] = {}
        for stored, frames in wanted.items():
            ordered = sorted(frames)
            place = {number: index for index, number in enumerate(ordered)}
            decoded[stored] = place, self.clips.read_codes(record, stored, ordered)
        return [
            {chosen.name: _pick(*decoded[chosen.stored], frames_of(chosen, one, single=single)) for chosen in in_view}
            for one, in_view in zip(numbers, self._in_view, strict=True)
        ]


def usable_frames(record: ClipRecord, modalities: Sequence[Modality]) -> int:
    """Frame numbers that all modalities have: flow may be shorter than RGB, differences need the next frame."""
    counts = [record.num_frames]
    counts += [record.num_flow for chosen in modalities if chosen.stored == "flow"]
    counts += [record.num_frames - 1 for chosen in modalities if chosen.differences]
    return min(counts)


def frames_of(chosen: Modality, numbers: list[int], *, single: int) -> list[int]:
    """The stored frames that a modality needs for these frame numbers; `single` chooses that of a single frame."""
    if chosen.single_frame:
        return [numbers[single]]
    if chosen.differences:
        return numbers + [number + 1 for number in numbers]
    return numbers


def _pick(place: dict[int, int], frames: Tensor, numbers: list[int]) -> Tensor:
    wanted = [place[number] for number in numbers]
    if wanted == list(range(wanted[0], wanted[0] + len(wanted))):
        return frames[wanted[0] : wanted[0] + len(wanted)]  # a view, not a copy
    return frames[torch.tensor(wanted)]
