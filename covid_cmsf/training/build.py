"""Build the components of a run from its configuration. Only this module turns configuration into objects."""

import logging
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from covid_cmsf.clips.base import Clips
from covid_cmsf.methods.base import HeadConfig, Method, TargetMethodConfig
from covid_cmsf.methods.instance_memory import InstanceMemory
from covid_cmsf.methods.memory_bank import MemoryBanks
from covid_cmsf.models import MLP, Encoder, HeadLayout, create_model, load_weights
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.heads import head_layout
from covid_cmsf.models.named_networks import named_library
from covid_cmsf.models.networks import Guide, Network, make_predictor, make_target, network_metadata
from covid_cmsf.models.precision import compile_
from covid_cmsf.training.batchnorm import resolve_groups, train_mode_, use_sync_batchnorm
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.data import TrainData, open_data
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.guides import load_guides
from covid_cmsf.views.modalities import MODALITIES, Modality, get_modality

logger = logging.getLogger(__name__)


@dataclass
class TrainComponents:
    """What a step works with. `online` is `network`, wrapped in DDP if there are several processes."""

    data: TrainData
    network: Network
    online: nn.Module
    target: Network | None
    banks: MemoryBanks | None
    memory: InstanceMemory | None
    method: Method
    guides: list[Guide]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    generator: torch.Generator  # the same random numbers in every process
    metadata: EncoderMetadata
    init_description: str  # where the weights come from
    cached: dict[str, Tensor] = field(default_factory=dict)  # guide column: its cached views (V, N, D)


def build_components(config: TrainConfig, dist: DistributedContext, *, clips: Clips | None = None) -> TrainComponents:
    """Build everything on its device; `clips` replace those that the configuration names."""
    _check_batch_norm(config, dist)  # before clips are decoded into a cache
    seed_everything(config.seed)
    seen = get_modality(config.modality, flow_style=config.views.flow_style)
    guides = load_guides(config.guides, flow_style=config.views.flow_style)
    live = dict.fromkeys(chosen.modality for chosen in config.guides if chosen.cache == "none")
    cached = dict.fromkeys(chosen.modality for chosen in config.guides if chosen.cache != "none")
    target_sees = [*([seen.name] if config.method.has_target else []), *live]
    local = dist.local_processes()
    data = open_data(config, online=[seen.name], target=target_sees, cached=[*cached], clips=clips, local=local)
    head = config.method.head or HeadLayout(sizes=(encoder_num_features(config.encoder), max(data.num_classes, 1)))
    encoder, projector, init_description = init_network(
        config.encoder, modality=seen, head=head, init=config.init, branch=config.init_branch
    )
    method = config.method.build(num_classes=data.num_classes, embedding_dim=projector.layout.sizes[-1])
    check_labels(method, data, config)
    predictor = make_predictor(projector, encoder) if method.has_predictor else None
    network = Network(
        encoder, projector, predictor=predictor, unit_output=method.unit_output, dropout=method.feature_dropout
    )
    target = make_target(network) if method.has_target else None
    network, target = _prepare_networks(network, target, config, dist)
    frames = 1 if seen.single_frame else config.views.length  # of a window, also if its sound is one picture
    _, pixels = config.views.view_shape(seen)
    metadata = network_metadata(
        network,
        input_size=(frames, pixels, pixels),
        stride=config.views.stride,
        modality=seen.name,
        mean=seen.mean,
        std=seen.std,
        trained=describe_run(config),
        short_edge=info.short_edge if (info := data.clips.info) is not None else None,
        fps=info.fps or None if info is not None else None,
        flow=info.origin_of(seen.stored_modality) if info is not None else None,
    )
    return TrainComponents(
        data=replace(data, labels=data.labels.to(dist.device)),
        network=network,
        online=_wrap_distributed(network, dist),
        target=target,
        banks=_build_banks(config, network, guides, dist) if method.has_target else None,
        memory=_build_memory(method, data, network, dist),
        method=method.to(dist.device),
        guides=[guide.to(dist.device) for guide in guides],
        optimizer=build_optimizer(network, config),
        scaler=torch.amp.GradScaler(dist.device.type, enabled=config.precision == "fp16"),
        generator=torch.Generator().manual_seed(config.seed),
        metadata=metadata,
        init_description=init_description,
    )


def init_network(
    name: str, *, modality: Modality, head: HeadLayout | HeadConfig, init: str | None, branch: str | None
) -> tuple[Encoder, MLP, str]:
    """Return an encoder and a projector, new or from the file `init`, and a description of their origin.

    The file must hold this encoder, trained on flow if `modality` is flow, and on RGB otherwise.
    """
    if init is None:
        encoder = create_model(name, in_channels=modality.num_channels)
        return encoder, MLP(_head_layout(head, encoder.num_features)), "random weights"
    if named_library(init) is not None:
        raise ValueError(
            f"init: {init} is a network of another library: it can be a guide (guides: [{{weights: {init}}}]), and "
            "`covid-cmsf evaluate finetune` trains it on labels, but a run starts from an encoder of this package"
        )
    if not Path(init).exists():
        raise FileNotFoundError(f"init: no file {init}; train that run first, or leave init out for random weights")
    reuse = isinstance(head, HeadConfig) and head.reuse
    loaded = load_weights(init, branch=branch, encoder=name, keep_head=reuse)
    _check_init(loaded.metadata, modality, init)
    origin = f"{loaded.metadata.trained} ({init})"
    if reuse:
        assert isinstance(head, HeadConfig) and loaded.projector is not None
        return loaded.encoder, _reuse_projector(loaded.projector, head, init), origin + ", with its projector"
    return loaded.encoder, MLP(_head_layout(head, loaded.encoder.num_features)), origin


def _check_init(metadata: EncoderMetadata, modality: Modality, init: str) -> None:
    """Raise ValueError unless the weights were trained on this kind of input."""
    trained_on = metadata.modality
    known = MODALITIES.get(trained_on)
    if known is not None and known.is_flow != modality.is_flow:
        raise ValueError(
            f"init: {init} is a network for {trained_on} ({metadata.in_channels} input channels), and this run trains "
            f"on {modality.name}; give a network for {modality.name}, or set modality={trained_on}"
        )
    if metadata.in_channels != modality.num_channels:
        raise ValueError(
            f"init: {init} has {metadata.in_channels} input channels, and {modality.name} has {modality.num_channels}; "
            "`covid-cmsf weights import FILE --adapt mean` adapts a network"
        )


def _head_layout(head: HeadLayout | HeadConfig, num_features: int) -> HeadLayout:
    if isinstance(head, HeadLayout):
        return head
    return head_layout(
        head.projector, num_features, embedding_size=head.embedding_size, output_batch_norm=head.output_batch_norm
    )


def _reuse_projector(projector: MLP, head: HeadConfig, path: str) -> MLP:
    """Return the file's projector, with a new output batch norm if the configuration asks for one."""
    layout = projector.layout
    if head.embedding_size not in (None, layout.sizes[-1]):
        raise ValueError(
            f"{path}: its projector ends in {layout.sizes[-1]} values, and method.head.embedding_size is "
            f"{head.embedding_size}; leave it out, or set method.head.reuse=false"
        )
    if not head.output_batch_norm or layout.output_batch_norm:
        return projector
    extended = MLP(layout.model_copy(update={"output_batch_norm": True}))
    extended.load_state_dict({**extended.state_dict(), **projector.state_dict()})
    return extended


def seed_everything(seed: int) -> None:
    """Seed all global random numbers."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def build_optimizer(network: Network, config: TrainConfig) -> torch.optim.Optimizer:
    """Return Adam or SGD; the predictor is a parameter group of its own, with `factor` times the learning rate."""
    chosen = config.optimizer
    groups = [{"params": [*network.encoder.parameters(), *network.projector.parameters()], "factor": 1.0}]
    if network.predictor is not None:
        groups.append({"params": [*network.predictor.parameters()], "factor": chosen.predictor_lr_factor})
    if chosen.name == "adam":
        return torch.optim.Adam(groups, lr=chosen.lr, weight_decay=chosen.weight_decay, fused=True)
    return torch.optim.SGD(
        groups, lr=chosen.lr, weight_decay=chosen.weight_decay, momentum=chosen.sgd_momentum, fused=True
    )


def check_labels(method: Method, data: TrainData, config: TrainConfig) -> None:
    """Raise ValueError if a method that learns from labels has none."""
    if method.uses_labels and bool((data.labels < 0).all()):
        raise ValueError(f"{config.method.name} learns from labels, and {config.clips} has none")


def describe_run(config: TrainConfig) -> str:
    """Describe the run for the weights' metadata: `cmsf on flow, 20 epochs`."""
    return f"{config.method.name} on {config.modality}, {config.schedule.epochs} epochs"


def encoder_num_features(encoder: str) -> int:
    """Return the feature size of an encoder without allocating its weights."""
    with torch.device("meta"):
        return create_model(encoder).num_features


def _build_banks(config: TrainConfig, network: Network, guides: list[Guide], dist: DistributedContext) -> MemoryBanks:
    method = config.method
    assert isinstance(method, TargetMethodConfig)
    dim = network.projector.layout.sizes[-1]
    dims = {"target": dim, **{guide.column: guide.dim for guide in guides}, **dict.fromkeys(method.extra_columns, dim)}
    return MemoryBanks(method.bank_size, dims, labeled_size=method.second_bank_size).to(dist.device)


def _build_memory(method: Method, data: TrainData, network: Network, dist: DistributedContext) -> InstanceMemory | None:
    if method.memory_kind == "none":
        return None
    return InstanceMemory(len(data.views), network.projector.layout.sizes[-1]).to(dist.device)


def _check_batch_norm(config: TrainConfig, dist: DistributedContext) -> None:
    several_gpus = dist.world_size > 1 and dist.device.type == "cuda"
    if config.batch_norm.mode == "sync" and not several_gpus:
        raise ValueError("batch_norm.mode=sync needs several processes, each with a GPU; try local or frozen")
    if config.batch_norm.groups > 1 and dist.world_size > 1:
        raise ValueError("batch_norm.groups imitates several processes in one; there are several")


def _prepare_networks(
    network: Network, target: Network | None, config: TrainConfig, dist: DistributedContext
) -> tuple[Network, Network | None]:
    mode = config.batch_norm.mode
    groups = resolve_groups(config.batch_norm, world_size=dist.world_size)
    if groups != config.batch_norm.groups:
        logger.info("batch_norm.shuffle in one process: %d groups of the batch imitate %d processes", groups, groups)
    both = [network] if target is None else [network, target]
    if mode == "sync":
        both = [use_sync_batchnorm(one) for one in both]
    both[0].encoder.gradient_checkpointing = config.runtime.gradient_checkpointing
    for one in both:
        one.to(dist.device)
        train_mode_(one, frozen=mode == "frozen")
        if config.compile:
            compile_(one.encoder)
    return both[0], both[1] if target is not None else None


def _wrap_distributed(network: Network, dist: DistributedContext) -> nn.Module:
    if dist.world_size == 1:
        return network
    return nn.parallel.DistributedDataParallel(network, broadcast_buffers=False)
