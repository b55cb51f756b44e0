"""Batch norms of an encoder with random weights: they must have seen some clips, or its signal dies out layer by layer.

A few clips of the training part pass in train mode, without labels and without a gradient; the weights stay as drawn.
"""

# B batch, C channels, T frames, H W pixels

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from covid_cmsf.evaluation.shown_videos import ShownVideos

NUM_VIDEOS = 64
BATCH_SIZE = 16


def calibrate_(network: nn.Module, data: ShownVideos, *, device: torch.device) -> None:
    """Sets the running statistics to the average over up to 64 training videos, evenly spread, a window of each."""
    network.to(device)
    numbers = [number for number, part in enumerate(data.parts) if part == "train"] or list(range(len(data)))
    chosen = numbers[:: max(1, len(numbers) // NUM_VIDEOS)][:NUM_VIDEOS]
    shown = (data[number] for number in chosen)
    views = [next(video.views(data.showing, data.clips.flow_bound, device)).cpu() for video in shown if not video.fault]
    if len(views) < 2:
        raise ValueError(f"{len(views)} training videos could be read; batch norm needs two to begin with")
    norms = {part: part.momentum for part in network.modules() if isinstance(part, _BatchNorm)}
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
