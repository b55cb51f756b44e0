"""A trained classifier asked about whole videos: softmax, averaged over windows and crops."""

# N videos, C classes

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from covid_cmsf.evaluation.features.video_dataset import VideoDataset, load_videos
from covid_cmsf.models.precision import autocast

BATCH_SIZE = 16


@dataclass(frozen=True)
class VideoPredictions:
    """Probabilities (N, C) of the videos that could be read, their numbers in the data set, and the others' faults."""

    probabilities: Tensor
    indices: list[int]
    errors: dict[int, str]


def predict_videos(
    network: nn.Module,
    data: VideoDataset,
    *,
    num_workers: int,
    device: torch.device,
    precision: str = "fp32",
    on_video: Callable[[], None] = lambda: None,
) -> VideoPredictions:
    """The network's opinion of every video."""
    outputs, video_indices, errors = window_outputs(
        network, data, num_workers=num_workers, device=device, precision=precision, on_video=on_video
    )
    indices = sorted(set(video_indices))
    position_of = {number: row for row, number in enumerate(indices)}
    rows = torch.tensor([position_of[number] for number in video_indices])
    probabilities = outputs.softmax(1).double()
    sums = torch.zeros(len(indices), probabilities.shape[1], dtype=torch.float64).index_add_(0, rows, probabilities)
    return VideoPredictions((sums / rows.bincount()[:, None]).float(), indices, errors)


def window_outputs(
    network: nn.Module,
    data: VideoDataset,
    *,
    num_workers: int,
    device: torch.device,
    precision: str = "fp32",
    on_video: Callable[[], None] = lambda: None,
) -> tuple[Tensor, list[int], dict[int, str]]:
    """What the network gives for every window and crop (W, ...), the number of each one's video, and faults."""
    video_indices: list[int] = []
    errors: dict[int, str] = {}

    def views() -> Iterator[Tensor]:
        for video in load_videos(data, range(len(data)), num_workers=num_workers):
            if video.error:
                errors[video.index] = video.error
            video_indices.extend([video.index] * len(video.starts) * len(video.crops))
            yield from video.views(data.eval_protocol, data.clips.flow_bound, device)
            on_video()

    network.eval()
    outputs: list[Tensor] = []
    view_stream = views()
    while batch := list(islice(view_stream, BATCH_SIZE)):
        with torch.inference_mode(), autocast(precision, device):
            outputs.append(network(torch.stack(batch)).float().cpu())
    if not outputs:
        raise ValueError(f"none of {len(data)} videos could be read; the first: {next(iter(errors.values()), '')}")
    return torch.cat(outputs), video_indices, errors
