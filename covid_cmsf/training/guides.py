"""Guides: frozen encoders of other modalities, live or with cached embeddings. Verified unchanged after the run.

A cache holds a guide's embeddings of a few views per video. It saves the guide's decoding, augmentation and forward
pass in every step; the price is that the same few views are used throughout.
"""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from covid_cmsf.logs import progress_bar
from covid_cmsf.models import Guide, load_weights, make_guide
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.training.config import GuideConfig
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.verified_files import DamagedFileError, read_tensors, write_tensors
from covid_cmsf.views.batch import Batch, collate
from covid_cmsf.views.dataset import SampleKey, ViewDataset
from covid_cmsf.views.loader import init_worker
from covid_cmsf.views.modalities import Modality, get_modality

logger = logging.getLogger(__name__)

# B batch, V views, N videos, D embedding

CACHE_EPOCH = 2**31  # views of epochs that no run reaches, so that they differ from the run's own


def load_guides(chosen: Sequence[GuideConfig], *, flow_style: str) -> list[Guide]:
    """Load the guides of a run, each for a bank column named after its modality."""
    guides: list[Guide] = []
    for number, config in enumerate(chosen):
        same = sum(one.modality == config.modality for one in chosen[:number])
        column = f"guide_{config.modality}" + (f"_{same + 1}" if same else "")
        if not Path(config.weights).exists():
            raise FileNotFoundError(f"guides[{number}].weights: no file {config.weights}; train the guide first")
        loaded = load_weights(config.weights, branch=config.branch, keep_head=config.layer == "projector")
        _check_guide(loaded.metadata, get_modality(config.modality, flow_style=flow_style), config)  # type: ignore[arg-type]
        guides.append(make_guide(loaded, path=config.weights, modality=config.modality, column=column))
    return guides


def _check_guide(metadata: EncoderMetadata, seen: Modality, config: GuideConfig) -> None:
    """Raise ValueError unless the guide was trained on the modality that it will be given."""
    if metadata.in_channels != seen.num_channels:
        raise ValueError(
            f"guide {config.weights} takes {metadata.in_channels} channels, and {seen.name} has {seen.num_channels}; "
            "for CoCLR's flow networks set views.flow_style=coclr"
        )
    if metadata.modality not in ("unknown", seen.name) and {metadata.modality, seen.name} != {"rgb", "frame"}:
        raise ValueError(f"guide {config.weights} was trained on {metadata.modality}, not on {seen.name}")


def embed_views(
    guide: Guide, data: ViewDataset, *, num_views: int, batch_size: int, workers: int, dist: DistributedContext
) -> Tensor:
    """Return the guide's embeddings (V, N, D) of `num_views` target views of every video.

    Each process embeds a shard; all get the whole. A video that cannot be read is an error.
    """
    keys = [SampleKey(CACHE_EPOCH + view, video, video) for view in range(num_views) for video in range(len(data))]
    own = keys[dist.rank :: dist.world_size]
    batches = [own[start : start + batch_size] for start in range(0, len(own), batch_size)]
    worker_options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "spawn"} if workers else {}
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_sampler=batches,
        collate_fn=partial(collate, modalities=data.modalities),
        worker_init_fn=init_worker,
        **worker_options,
    )
    with progress_bar(f"embedding {num_views} views per video with the guide", len(batches)) as advance:
        chunks = [_embed(guide, batch, dist.device, advance) for batch in loader]
    embeddings = torch.empty(len(keys), guide.dim)
    for rank, chunk in enumerate(dist.gather_objects(torch.cat(chunks))):
        embeddings[rank :: dist.world_size] = chunk
    return embeddings.view(num_views, len(data), guide.dim)


def _embed(guide: Guide, batch: Batch, device: torch.device, advance: Any) -> Tensor:
    if batch.read_error:
        raise ValueError(f"the guide's cache needs every video: {batch.read_error}")
    advance()
    embedding: Tensor = guide(batch.to(device).target[guide.modality])
    return embedding.cpu()


def average_and_center(views: Tensor, *, mean: bool, center: bool) -> Tensor:
    """Average the views (V, N, D) of each video (`mean`), subtract the mean over all videos (`center`), normalize."""
    views = views - views.mean(dim=(0, 1)) if center else views
    views = views.mean(0, keepdim=True) if mean else views
    return torch.nn.functional.normalize(views, dim=2)


def sample_views(views: Tensor, videos: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random view (B, D) of each of the batch's videos (B,)."""
    which = torch.randint(len(views), (len(videos),), generator=generator)
    return views[which.to(views.device), videos.to(views.device)]


def write_guide_cache(path: Path, views: Tensor, key: str) -> None:
    """Write the embeddings; `key` identifies guide, data and configuration."""
    write_tensors(path, {"views": views}, metadata={"key": key})


def read_guide_cache(path: Path, key: str) -> Tensor | None:
    """Return what `write_guide_cache` wrote under the same key; None if there is nothing valid."""
    if not path.is_file():
        return None
    try:
        tensors, metadata = read_tensors(path, hint="it is computed again")
    except DamagedFileError as error:
        logger.warning("%s", error)
        return None
    return tensors.get("views") if metadata.get("key") == key else None
