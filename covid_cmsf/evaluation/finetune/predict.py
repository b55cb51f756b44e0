"""Predict whole videos with a trained classifier: softmax, averaged over windows and crops."""

# N videos, C classes

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covid_cmsf.evaluation.features.inference import WindowOutputs, window_outputs
from covid_cmsf.evaluation.features.video_dataset import DecodedVideo, VideoDataset, load_videos

BATCH_SIZE = 16


@dataclass(frozen=True)
class VideoPredictions:
    """Probabilities of the videos that could be read."""

    probabilities: Tensor  # (N, C)
    indices: list[int]  # of these videos in the data set
    errors: dict[int, str]  # {index of another video: reason}


def predict_videos(
    network: nn.Module,
    data: VideoDataset,
    *,
    num_workers: int,
    device: torch.device,
    precision: str = "fp32",
    videos: Iterable[DecodedVideo] | None = None,
) -> VideoPredictions:
    """Average the probabilities of every video over its windows and crops; `videos` are those of `data`, if at hand."""
    outputs = all_window_outputs(
        network, data, num_workers=num_workers, device=device, precision=precision, videos=videos
    )
    indices, positions, counts = outputs.window_videos.unique(return_inverse=True, return_counts=True)
    probabilities = outputs.windows.softmax(1).double()
    sums = torch.zeros(len(indices), probabilities.shape[1], dtype=torch.float64)
    sums.index_add_(0, positions, probabilities)
    return VideoPredictions((sums / counts[:, None]).float(), indices.tolist(), outputs.errors)


def all_window_outputs(
    network: nn.Module,
    data: VideoDataset,
    *,
    num_workers: int,
    device: torch.device,
    precision: str = "fp32",
    videos: Iterable[DecodedVideo] | None = None,
) -> WindowOutputs:
    """Run the network over all videos of a data set; ValueError if none can be read."""
    videos = load_videos(data, range(len(data)), num_workers=num_workers) if videos is None else videos
    outputs = window_outputs(network, data, iter(videos), batch_size=BATCH_SIZE, device=device, precision=precision)
    if not len(outputs.windows):
        reason = next(iter(outputs.errors.values()), "")
        raise ValueError(f"none of {len(data)} videos could be read; the first: {reason}")
    return outputs
