"""Run a network over the windows of videos, and average windows per video."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from covid_cmsf.devices import explained_memory, fetch
from covid_cmsf.evaluation.chunks import row_chunks
from covid_cmsf.evaluation.features.protocol import CroppedClip
from covid_cmsf.evaluation.features.video_dataset import DecodedVideo, VideoDataset
from covid_cmsf.models.precision import autocast

# B batch, C channels, T frames, H W pixels, W windows, D feature

CALIBRATION_VIDEOS = 64
CALIBRATION_BATCH_SIZE = 16


@dataclass(frozen=True)
class WindowOutputs:
    """Outputs of a network for every window of every crop of some videos."""

    windows: Tensor  # (W, D)
    window_videos: Tensor  # (W,) index of the video in the data set
    window_starts: Tensor  # (W,) first frame
    errors: dict[int, str]  # {index of a video that could not be read: reason}


def window_outputs(
    network: nn.Module,
    data: VideoDataset,
    videos: Iterable[DecodedVideo],
    *,
    batch_size: int,
    device: torch.device,
    precision: str = "fp32",
) -> WindowOutputs:
    """Run `network` in eval mode over all windows; batches span videos, which may come from an iterator."""
    network.to(device).eval()
    video_indices: list[int] = []
    starts: list[int] = []
    errors: dict[int, str] = {}

    def windows() -> Iterator[CroppedClip]:
        for video in videos:
            if video.error:
                errors[video.index] = video.error
            video_indices.extend([video.index] * len(video.starts) * len(video.crops))
            starts.extend(video.starts * len(video.crops))
            yield from video.windows()

    outputs: list[Tensor] = []
    arriving: deque[Callable[[], Tensor]] = deque()
    stream = windows()
    while batch := list(islice(stream, batch_size)):
        with torch.inference_mode(), autocast(precision, device):
            output = network(data.eval_protocol.to_views(batch, device)).float()
            arriving.append(fetch(output))
        if len(arriving) > 1:
            outputs.append(arriving.popleft()())  # a GPU works on this batch meanwhile
    features = torch.cat([*outputs, arriving.popleft()()]) if arriving else torch.zeros(0, 0)
    # dtype: a list that is empty because no video could be read would be float
    window_videos, window_starts = (torch.tensor(values, dtype=torch.int64) for values in (video_indices, starts))
    return WindowOutputs(features, window_videos, window_starts, errors)


def window_features(
    encoder: nn.Module,
    data: VideoDataset,
    videos: Iterable[DecodedVideo],
    *,
    batch_size: int,
    device: torch.device,
    precision: str = "fp32",
) -> WindowOutputs:
    """Return the `window_outputs` of an encoder; RuntimeError if one is not finite."""
    with explained_memory(lambda: _memory_advice(data, batch_size=batch_size, precision=precision)):
        outputs = window_outputs(encoder, data, videos, batch_size=batch_size, device=device, precision=precision)
    nonfinite = (~torch.isfinite(outputs.windows)).any(1).nonzero().flatten().tolist()
    if nonfinite:
        video_id = data.records[int(outputs.window_videos[nonfinite[0]])].video_id
        raise RuntimeError(f"the encoder gives values that are not finite, first for {video_id!r}")
    return outputs


def _memory_advice(data: VideoDataset, *, batch_size: int, precision: str) -> str:
    """Return what an extraction holds and what needs less memory; see `explained_memory`."""
    advice = [f"a smaller batch size (--batch-size {batch_size // 2})"] if batch_size > 1 else []
    advice += ["--precision bf16"] if precision == "fp32" else []
    advice += ["nothing else on the GPU (nvidia-smi lists it)", "--device cpu"]
    protocol = data.eval_protocol
    described = f"{batch_size} windows of {protocol.length}x{protocol.size}x{protocol.size} at once, {precision}"
    return f"({described}); less is needed with {'; '.join(advice)}"


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
    """Average unit-length window features (W, D) per video, (num_videos, D); `video_indices` (W,) ascend."""
    features = torch.empty(num_videos, windows.shape[1])
    counts = video_indices.bincount(minlength=num_videos).clamp(min=1)
    for videos in row_chunks(num_videos, windows.shape[1]):
        first, last = torch.searchsorted(video_indices, torch.tensor([videos.start, videos.stop])).tolist()
        unit = F.normalize(windows[first:last].double(), dim=1)
        sums = torch.zeros(videos.stop - videos.start, windows.shape[1], dtype=torch.float64)
        sums.index_add_(0, video_indices[first:last] - videos.start, unit)
        features[videos] = (sums / counts[videos, None]).float()
    return features


def calibrate_(network: nn.Module, data: VideoDataset, *, device: torch.device) -> None:
    """Set the running statistics of batch norm from one window each of up to 64 training videos, evenly spaced.

    With the default statistics the signal of an encoder with random weights vanishes layer by layer. The weights do not
    change.
    """
    network.to(device)
    indices = [index for index, subset in enumerate(data.subsets) if subset == "train"] or list(range(len(data)))
    sampled = indices[:: max(1, len(indices) // CALIBRATION_VIDEOS)][:CALIBRATION_VIDEOS]
    videos = (data[index] for index in sampled)
    views = [next(video.views(data.eval_protocol, device)).cpu() for video in videos if not video.error]
    if len(views) < 2:
        raise ValueError(f"{len(views)} training videos could be read; batch norm needs at least two")
    norms = {module: module.momentum for module in network.modules() if isinstance(module, _BatchNorm)}
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the average over all batches
        norm.train()
    with torch.no_grad():
        for batch in torch.stack(views).split(CALIBRATION_BATCH_SIZE):
            network(batch.to(device))
    for norm, momentum in norms.items():
        norm.momentum = momentum
        norm.eval()
