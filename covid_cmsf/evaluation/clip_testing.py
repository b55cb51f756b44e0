"""A trained classifier asked about whole videos: softmax, averaged over windows and crops."""

# N videos, C classes

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from covid_cmsf.evaluation.shown_videos import ShownVideos, load_videos
from covid_cmsf.models.speed import autocast

BATCH_SIZE = 16


@dataclass(frozen=True)
class VideoAnswers:
    """Probabilities (N, C) of the videos that could be read, their numbers in the data set, and the others' faults."""

    probabilities: Tensor
    numbers: list[int]
    faults: dict[int, str]


def class_probabilities(
    network: nn.Module,
    data: ShownVideos,
    *,
    num_workers: int,
    device: torch.device,
    precision: str = "fp32",
    on_video: Callable[[], None] = lambda: None,
) -> VideoAnswers:
    """The network's opinion of every video."""
    outputs, owners, faults = shown_to(
        network, data, num_workers=num_workers, device=device, precision=precision, on_video=on_video
    )
    numbers = sorted(set(owners))
    place = {number: row for row, number in enumerate(numbers)}
    rows = torch.tensor([place[number] for number in owners])
    answers = outputs.softmax(1).double()
    sums = torch.zeros(len(numbers), answers.shape[1], dtype=torch.float64).index_add_(0, rows, answers)
    return VideoAnswers((sums / rows.bincount()[:, None]).float(), numbers, faults)


def shown_to(
    network: nn.Module,
    data: ShownVideos,
    *,
    num_workers: int,
    device: torch.device,
    precision: str = "fp32",
    on_video: Callable[[], None] = lambda: None,
) -> tuple[Tensor, list[int], dict[int, str]]:
    """What the network gives for every window and crop (W, ...), the number of each one's video, and faults."""
    owners: list[int] = []
    faults: dict[int, str] = {}

    def views() -> Iterator[Tensor]:
        for video in load_videos(data, range(len(data)), num_workers=num_workers):
            if video.fault:
                faults[video.number] = video.fault
            owners.extend([video.number] * len(video.starts) * len(video.crops))
            yield from video.views(data.showing, data.clips.flow_bound, device)
            on_video()

    network.eval()
    found: list[Tensor] = []
    stream = views()
    while batch := list(islice(stream, BATCH_SIZE)):
        with torch.inference_mode(), autocast(precision, device):
            found.append(network(torch.stack(batch)).float().cpu())
    if not found:
        raise ValueError(f"none of {len(data)} videos could be read; the first: {next(iter(faults.values()), '')}")
    return torch.cat(found), owners, faults
