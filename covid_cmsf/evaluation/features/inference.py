"""Windows -> features: the encoder at work."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from covid_cmsf.evaluation.features.shards import Shard
from covid_cmsf.evaluation.features.video_dataset import DecodedVideo, VideoDataset
from covid_cmsf.models.precision import autocast

# B batch, C channels, T frames, H W pixels, W windows, D feature


class FeatureExtractor:
    """A frozen network on its device; batches of windows run across videos."""

    def __init__(
        self, network: nn.Module, data: VideoDataset, *, batch_size: int, device: torch.device, precision: str
    ) -> None:
        self.network, self.data = network.to(device).eval(), data
        self._batch_size, self._device, self._precision = batch_size, device, precision

    def __call__(self, videos: Iterable[DecodedVideo]) -> Shard:
        """The windows' features; `videos` may be an iterator that reads as it goes."""
        video_indices: list[int] = []
        starts: list[int] = []
        errors: dict[int, str] = {}

        def views() -> Iterator[Tensor]:
            for video in videos:
                if video.error:
                    errors[video.index] = video.error
                video_indices.extend([video.index] * len(video.starts))
                starts.extend(video.starts)
                yield from video.views(self.data.eval_protocol, self.data.clips.flow_bound, self._device)

        outputs = list(self._features(views()))
        windows = torch.cat(outputs) if outputs else torch.zeros(0, 0)
        nonfinite = (~torch.isfinite(windows)).any(1).nonzero().flatten().tolist()
        if nonfinite:
            video = self.data.records[video_indices[nonfinite[0]]].video_id
            raise RuntimeError(f"the encoder gives values that are not finite, first for {video!r}")
        return Shard(windows, torch.tensor(video_indices), torch.tensor(starts), errors)

    def _features(self, views: Iterator[Tensor]) -> Iterator[Tensor]:
        while batch := list(islice(views, self._batch_size)):
            with torch.inference_mode(), autocast(self._precision, self._device):
                yield self.network(torch.stack(batch)).float().cpu()


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Put a network into eval mode, and every submodule back into its own mode at the end."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def video_features(windows: Tensor, video_indices: Tensor, num_videos: int) -> Tensor:
    """(W, D) features of windows -> (num_videos, D): each scaled to unit length, then averaged over a video's."""
    unit = F.normalize(windows.double(), dim=1)
    sums = torch.zeros(num_videos, windows.shape[1], dtype=torch.float64).index_add_(0, video_indices, unit)
    return (sums / video_indices.bincount(minlength=num_videos).clamp(min=1)[:, None]).float()


# Batch norms of an encoder with random weights: they must have seen some clips, or its signal dies out layer by layer.
#
# A few training clips pass in train mode, without labels and without a gradient; the weights stay as drawn.

# B batch, C channels, T frames, H W pixels


NUM_VIDEOS = 64
BATCH_SIZE = 16


def calibrate_(network: nn.Module, data: VideoDataset, *, device: torch.device) -> None:
    """Sets the running statistics to the average over up to 64 training videos, evenly spread, a window of each."""
    network.to(device)
    indices = [index for index, subset in enumerate(data.subsets) if subset == "train"] or list(range(len(data)))
    sampled = indices[:: max(1, len(indices) // NUM_VIDEOS)][:NUM_VIDEOS]
    videos = (data[index] for index in sampled)
    views = [
        next(video.views(data.eval_protocol, data.clips.flow_bound, device)).cpu()
        for video in videos
        if not video.error
    ]
    if len(views) < 2:
        raise ValueError(f"{len(views)} training videos could be read; batch norm needs two to begin with")
    norms = {module: module.momentum for module in network.modules() if isinstance(module, _BatchNorm)}
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the batches
        norm.train()
    with torch.no_grad():
        for batch in torch.stack(views).split(BATCH_SIZE):
            network(batch.to(device))
    for norm, momentum in norms.items():
        norm.momentum = momentum
        norm.eval()
