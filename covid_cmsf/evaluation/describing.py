"""Windows -> features: the encoder at work."""

# B batch, C channels, T frames, H W pixels, W windows, D feature

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covid_cmsf.evaluation.shards import Shard
from covid_cmsf.evaluation.shown_videos import ShownVideo, ShownVideos
from covid_cmsf.models.speed import autocast


class Describer:
    """A frozen network on its device; batches of windows run across videos."""

    def __init__(
        self, network: nn.Module, data: ShownVideos, *, batch_size: int, device: torch.device, precision: str
    ) -> None:
        self.network, self.data = network.to(device).eval(), data
        self._batch_size, self._device, self._precision = batch_size, device, precision

    def __call__(self, videos: Iterable[ShownVideo]) -> Shard:
        """The windows' features; `videos` may be an iterator that reads as it goes."""
        numbers: list[int] = []
        starts: list[int] = []
        faults: dict[int, str] = {}

        def views() -> Iterator[Tensor]:
            for video in videos:
                if video.fault:
                    faults[video.number] = video.fault
                numbers.extend([video.number] * len(video.starts))
                starts.extend(video.starts)
                yield from video.views(self.data.showing, self.data.clips.flow_bound, self._device)

        found = list(self._features(views()))
        windows = torch.cat(found) if found else torch.zeros(0, 0)
        bad = (~torch.isfinite(windows)).any(1).nonzero().flatten().tolist()
        if bad:
            video = self.data.records[numbers[bad[0]]].video_id
            raise RuntimeError(f"the encoder gives values that are not finite, first for {video!r}")
        return Shard(windows, torch.tensor(numbers), torch.tensor(starts), faults)

    def _features(self, views: Iterator[Tensor]) -> Iterator[Tensor]:
        while batch := list(islice(views, self._batch_size)):
            with torch.inference_mode(), autocast(self._precision, self._device):
                yield self.network(torch.stack(batch)).float().cpu()


def video_rows(windows: Tensor, owners: Tensor, num_videos: int) -> Tensor:
    """(W, D) features of windows -> (num_videos, D): each scaled to unit length, then averaged over a video's."""
    unit = F.normalize(windows.double(), dim=1)
    sums = torch.zeros(num_videos, windows.shape[1], dtype=torch.float64).index_add_(0, owners, unit)
    return (sums / owners.bincount(minlength=num_videos).clamp(min=1)[:, None]).float()
