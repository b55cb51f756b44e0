"""Predict whole videos with a trained classifier: softmax, averaged over windows and crops."""

# N videos, C classes

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from covid_cmsf.evaluation.features.inference import WindowOutputs, window_outputs
from covid_cmsf.evaluation.features.video_dataset import DecodedVideo, VideoDataset, load_videos
from covid_cmsf.evaluation.finetune.process_group import ProcessGroup

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
    group: ProcessGroup | None = None,
) -> VideoPredictions:
    """Average the probabilities of every video over its windows and crops, in all processes of a group together.

    `videos` are this process's part of those of `data`, if at hand. ValueError if none can be read.
    """
    group = group or ProcessGroup()
    options: dict[str, Any] = {"num_workers": num_workers, "device": device, "precision": precision, "videos": videos}
    parts = group.collect(_average(own_window_outputs(network, data, group=group, **options)))
    return group.share(_joined(parts, len(data)) if group.is_main else None)  # type: ignore[return-value]


def _average(outputs: WindowOutputs) -> VideoPredictions:
    if not len(outputs.windows):
        return VideoPredictions(torch.zeros(0, 0), [], outputs.errors)
    indices, positions, counts = outputs.window_videos.unique(return_inverse=True, return_counts=True)
    probabilities = outputs.windows.softmax(1).double()
    sums = torch.zeros(len(indices), probabilities.shape[1], dtype=torch.float64)
    sums.index_add_(0, positions, probabilities)
    return VideoPredictions((sums / counts[:, None]).float(), indices.tolist(), outputs.errors)


def _joined(parts: Sequence[VideoPredictions], num_videos: int) -> VideoPredictions:
    """Return the predictions of all processes in the order of the data set."""
    errors = {index: reason for part in parts for index, reason in part.errors.items()}
    indices = torch.tensor([index for part in parts for index in part.indices], dtype=torch.int64)
    if not len(indices):
        raise _unreadable(errors, num_videos)
    order = indices.argsort()
    probabilities = torch.cat([part.probabilities for part in parts if part.indices])
    return VideoPredictions(probabilities[order], indices[order].tolist(), dict(sorted(errors.items())))


def _unreadable(errors: dict[int, str], num_videos: int) -> ValueError:
    return ValueError(f"none of {num_videos} videos could be read; the first: {next(iter(errors.values()), '')}")


def own_window_outputs(
    network: nn.Module,
    data: VideoDataset,
    *,
    num_workers: int,
    device: torch.device,
    precision: str = "fp32",
    videos: Iterable[DecodedVideo] | None = None,
    group: ProcessGroup,
) -> WindowOutputs:
    """Run the network over this process's part of the videos of a data set."""
    own = load_videos(data, group.part(len(data)), num_workers=num_workers) if videos is None else videos
    return window_outputs(network, data, iter(own), batch_size=BATCH_SIZE, device=device, precision=precision)


def all_windows(
    network: nn.Module, data: VideoDataset, *, num_workers: int, device: torch.device, group: ProcessGroup
) -> Tensor | None:
    """Return the outputs (W, D) of all windows in the order of the videos, in the first process of a group only.

    ValueError if no video can be read.
    """
    outputs = own_window_outputs(network, data, num_workers=num_workers, device=device, group=group)
    parts = group.collect(outputs)
    if not group.is_main:
        return None
    kept = [part for part in parts if len(part.windows)]
    if not kept:
        raise _unreadable({index: reason for part in parts for index, reason in part.errors.items()}, len(data))
    order = torch.cat([part.window_videos for part in kept]).argsort(stable=True)
    return torch.cat([part.windows for part in kept])[order]
