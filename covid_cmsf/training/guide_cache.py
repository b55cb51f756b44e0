"""The guide is frozen, so its embeddings of some views of every video can be computed once and looked up afterwards.

That saves the guide's decoding, augmentation and forward pass in every step. The price: only a few views of each video
instead of ever new ones.
"""

# V views, N videos, D embedding, B batch

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import DataLoader

from covid_cmsf.atomic import atomic_path
from covid_cmsf.logs import progress_bar
from covid_cmsf.training.guides import Guide
from covid_cmsf.training.processes import Processes
from covid_cmsf.views.batch import Batch, collate
from covid_cmsf.views.dataset import Key, ViewDataset
from covid_cmsf.views.loader import start_worker

CACHE_EPOCH = 2**31  # views of epochs that no run reaches, so that they differ from the run's own


def embed_views(
    guide: Guide, data: ViewDataset, *, num_views: int, batch_size: int, workers: int, processes: Processes
) -> Tensor:
    """(V, N, D): target views of every video, as the guide sees them. A video that can't be read is an error.

    Each process does its share; all get the whole.
    """
    keys = [Key(CACHE_EPOCH + view, video, video) for view in range(num_views) for video in range(len(data))]
    mine = keys[processes.rank :: processes.count]
    batches = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    several: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "spawn"} if workers else {}
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_sampler=batches,
        collate_fn=partial(collate, modalities=data.modalities, flow_bound=data.clips.flow_bound),
        worker_init_fn=start_worker,
        **several,
    )
    with progress_bar(f"embedding {num_views} views a video with the guide", len(batches)) as advance:
        parts = [_embed(guide, batch, processes.device, advance) for batch in loader]
    rows = torch.empty(len(keys), guide.size)
    for rank, part in enumerate(processes.gather_objects(torch.cat(parts))):
        rows[rank :: processes.count] = part
    return rows.view(num_views, len(data), guide.size)


def _embed(guide: Guide, batch: Batch, device: torch.device, advance: Any) -> Tensor:
    if batch.fault:
        raise ValueError(f"the guide's cache needs every video: {batch.fault}")
    advance()
    return guide(batch.to(device).target[guide.modality]).cpu()


def finished(views: Tensor, *, mean: bool, center: bool) -> Tensor:
    """(V, N, D) unit vectors: with `mean` a single one a video, with `center` about the mean of all videos."""
    views = views - views.mean(dim=(0, 1)) if center else views
    views = views.mean(0, keepdim=True) if mean else views
    return torch.nn.functional.normalize(views, dim=2)


def pick(views: Tensor, videos: Tensor, generator: torch.Generator) -> Tensor:
    """(B, D): for each of the batch's videos (B,) one of its views, drawn at random."""
    which = torch.randint(len(views), (len(videos),), generator=generator)
    return views[which.to(views.device), videos.to(views.device)]


def write_cache(path: Path, views: Tensor, key: str) -> None:
    """Keeps the embeddings; `key` says of which guide, data and settings they are."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(save({"views": views.contiguous()}, metadata={"key": key}))


def read_cache(path: Path, key: str) -> Tensor | None:
    """What `write_cache` kept under the same key; None when there is nothing, or something else, or it is damaged."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return file.get_tensor("views") if (file.metadata() or {}).get("key") == key else None
    except SafetensorError:
        return None
