"""A batch: views by modality, and who they are."""

# B batch, C channels, T frames, H W pixels

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covid_cmsf.views.draws import ViewDraw
from covid_cmsf.views.making import finish_view
from covid_cmsf.views.modalities import Modality

Views = dict[str, Tensor]  # modality: (B, C, T, H, W), (B, C, H, W) for single frames


@dataclass(frozen=True)
class Deferred:
    """Views that were only cut so far, as uint8: their colors and normalization are left to the device."""

    modalities: list[Modality]
    flow_bound: float
    draws: list[list[dict[str, ViewDraw]]]  # [view][row of the batch][modality]


@dataclass(frozen=True)
class Batch:
    """What a training step gets. `videos`, `sources` and `labels` are integers; an unknown label is -1."""

    views: tuple[Views, ...]  # (online, target)
    videos: Tensor  # (B,) number of the video in the data set
    sources: Tensor  # (B,) number of the footage
    labels: Tensor  # (B,)
    num_replaced: int = 0  # rows that stand in for clips that could not be read
    fault: str = ""  # the first error behind them
    deferred: Deferred | None = None

    @property
    def online(self) -> Views:
        """The view for the online encoder."""
        return self.views[0]

    @property
    def target(self) -> Views:
        """The view for the target encoder and the guide."""
        return self.views[1]

    def to(self, device: torch.device | str) -> "Batch":
        """On another device; deferred views are finished there."""
        moved = self._each(lambda tensor: tensor.to(device, non_blocking=True))
        return moved.finished()

    def pin_memory(self) -> "Batch":
        """In page-locked memory, from which copies to a GPU overlap with work. Called by the data loader."""
        return self._each(lambda tensor: tensor.pin_memory())

    def finished(self) -> "Batch":
        """With deferred views finished, where they are."""
        plan = self.deferred
        if plan is None:
            return self
        views = tuple(
            {
                chosen.name: torch.stack(
                    [
                        finish_view(codes, draws[row][chosen.name], chosen, flow_bound=plan.flow_bound)
                        for row, codes in enumerate(view[chosen.name])
                    ]
                )
                for chosen in plan.modalities
                if chosen.name in view
            }
            for view, draws in zip(self.views, plan.draws, strict=True)
        )
        return replace(self, views=views, deferred=None)

    def _each(self, change) -> "Batch":  # type: ignore[no-untyped-def]
        views = tuple({name: change(view) for name, view in pair.items()} for pair in self.views)
        return replace(
            self, views=views, videos=change(self.videos), sources=change(self.sources), labels=change(self.labels)
        )


@dataclass(frozen=True)
class Sample:
    """One row of a batch, before it is one."""

    views: tuple[Views, ...]
    video: int
    source: int
    label: int
    fault: str = ""  # why another video stands in
    draws: tuple[dict[str, ViewDraw], ...] = ()


def collate(samples: Sequence[Sample], *, modalities: list[Modality], flow_bound: float) -> Batch:
    """Samples -> batch."""
    views = tuple(
        {name: torch.stack([sample.views[number][name] for sample in samples]) for name in samples[0].views[number]}
        for number in range(len(samples[0].views))
    )
    deferred = None
    if samples[0].draws:
        draws = [[sample.draws[number] for sample in samples] for number in range(len(views))]
        deferred = Deferred(modalities, flow_bound, draws)
    faults = [sample.fault for sample in samples if sample.fault]
    return Batch(
        views=views,
        videos=torch.tensor([sample.video for sample in samples]),
        sources=torch.tensor([sample.source for sample in samples]),
        labels=torch.tensor([sample.label for sample in samples]),
        num_replaced=len(faults),
        fault=faults[0] if faults else "",
        deferred=deferred,
    )
