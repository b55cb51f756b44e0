"""The parts of a run, built from its settings. This is the one place where settings become objects."""

import logging
import random
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from covid_cmsf.methods.banks import Banks
from covid_cmsf.methods.contrastive import CoCLR, InfoNCE, LabelContrast
from covid_cmsf.methods.memory import Memory
from covid_cmsf.methods.method import Method
from covid_cmsf.methods.shift import MeanShift
from covid_cmsf.methods.supervised import FrzProto, ProtoNW, Xent
from covid_cmsf.models import HeadLayout
from covid_cmsf.models.speed import compile_
from covid_cmsf.models.weights.card import EncoderCard
from covid_cmsf.training import method_settings as named
from covid_cmsf.training.batch_norm import synchronize, train_mode_
from covid_cmsf.training.data import Data, open_data
from covid_cmsf.training.guides import Guide, load_guides
from covid_cmsf.training.networks import Network, card_of, predictor_for, slow_copy, start_network
from covid_cmsf.training.processes import Processes
from covid_cmsf.training.settings import TrainSettings
from covid_cmsf.views.modalities import modality

logger = logging.getLogger(__name__)
PREVIOUS = "previous"  # column of the bank: the same videos, as they were embedded at their last visit


@dataclass
class Parts:
    """What a step works with. `online` is what is called; `network` is the same without its distributed wrapping."""

    data: Data
    network: Network
    online: nn.Module
    target: Network | None
    banks: Banks | None
    memory: Memory | None
    method: Method
    guides: list[Guide]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    generator: torch.Generator  # the same draws in every process
    card: EncoderCard
    words: str  # where the weights come from
    cached: dict[str, Tensor] = field(default_factory=dict)  # guide's column: its views (V, N, D)


def build_parts(settings: TrainSettings, processes: Processes) -> Parts:
    """Everything on its device; with several processes the online network is wrapped for them."""
    seed_(settings.seed)
    seen = modality(settings.modality, flow_style=settings.views.flow_style)
    guides = load_guides(settings.guides, flow_style=settings.views.flow_style)
    live = dict.fromkeys(chosen.modality for chosen in settings.guides if chosen.cache == "none")
    cached = dict.fromkeys(chosen.modality for chosen in settings.guides if chosen.cache != "none")
    has_target = not isinstance(settings.method, named.FrzProtoSettings | named.XentSettings)
    target_sees = [*([seen.name] if has_target else []), *live]
    data = open_data(settings, online=[seen.name], target=target_sees, cached=[*cached])
    head = settings.head or HeadLayout(sizes=(num_features(settings.encoder), max(data.num_classes, 1)))
    encoder, projector, words = start_network(
        settings.encoder, in_channels=seen.num_channels, head=head, init=settings.init, part=settings.init_part
    )
    method = build_method(settings.method, num_classes=data.num_classes, size=projector.layout.sizes[-1])
    check_labels(method, data, settings)
    predictor = predictor_for(projector, encoder) if method.has_predictor else None
    network = Network(encoder, projector, predictor=predictor, unit_output=method.unit_output)
    target = slow_copy(network) if method.has_target else None
    network, target = _on_device(network, target, settings, processes)
    frames = 1 if seen.single_frame else settings.views.length
    pixels = settings.views.frame_size if seen.single_frame else settings.views.size
    card = card_of(
        network,
        input_size=(frames, pixels, pixels),
        stride=settings.views.stride,
        modality=seen.name,
        mean=seen.mean,
        std=seen.std,
        trained=in_words(settings),
    )
    return Parts(
        data=replace(data, labels=data.labels.to(processes.device)),
        network=network,
        online=_wrapped(network, processes),
        target=target,
        banks=_banks(settings, network, guides, processes) if method.has_target else None,
        memory=_memory(method, data, network, processes),
        method=method.to(processes.device),
        guides=[guide.to(processes.device) for guide in guides],
        optimizer=build_optimizer(network, settings),
        scaler=torch.amp.GradScaler(processes.device.type, enabled=settings.precision == "fp16"),
        generator=torch.Generator().manual_seed(settings.seed),
        card=card,
        words=words,
    )


def seed_(seed: int) -> None:
    """All global random numbers, so that the states in checkpoints are the same for the same settings."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def build_method(chosen: named.MethodSettings, *, num_classes: int, size: int) -> Method:
    """The method that the settings name; `size` is the width of the projector's output."""
    match chosen:
        case named.CmsfSettings():
            return MeanShift(
                k=chosen.k,
                constraint=chosen.constraint,
                num_candidates=chosen.num_candidates,
                join=chosen.join,
                include_target=chosen.include_target,
                include_siblings=chosen.include_siblings,
            )
        case named.Cmsf2qSettings():
            return MeanShift(
                k=chosen.k,
                constraint="previous",
                num_candidates=chosen.num_candidates,
                include_target=chosen.include_target,
                include_siblings=chosen.include_siblings,
            )
        case named.CmsfKmSettings():
            return MeanShift(
                k=chosen.k,
                constraint="cluster",
                include_target=chosen.include_target,
                include_siblings=chosen.include_siblings,
            )
        case named.MsfSettings():
            return MeanShift(k=chosen.k, include_target=chosen.include_target, include_siblings=chosen.include_siblings)
        case named.ByolSettings():
            return MeanShift(k=1, constraint="self")
        case named.InfoNceSettings():
            return InfoNCE(
                temperature=chosen.temperature, leave_out=chosen.leave_out, batch_negatives=chosen.batch_negatives
            )
        case named.UberNceSettings():
            return LabelContrast(temperature=chosen.temperature)
        case named.SupConSettings():
            return LabelContrast(temperature=chosen.temperature, include_target=chosen.include_target)
        case named.CoClrSettings():
            return CoCLR(temperature=chosen.temperature, top_k=chosen.top_k, drop_self=chosen.drop_self)
        case named.ProtoNwSettings():
            return ProtoNW(num_classes=num_classes, temperature=chosen.temperature)
        case named.FrzProtoSettings():
            return FrzProto(num_classes=num_classes, size=size, seed=chosen.prototype_seed)
        case named.XentSettings():
            return Xent()


def build_optimizer(network: Network, settings: TrainSettings) -> torch.optim.Optimizer:
    """Adam or SGD over all weights; the predictor is a group of its own, with `factor` times the rate."""
    chosen = settings.optimizer
    groups = [{"params": [*network.encoder.parameters(), *network.projector.parameters()], "factor": 1.0}]
    if network.predictor is not None:
        groups.append({"params": [*network.predictor.parameters()], "factor": chosen.predictor_lr_factor})
    if chosen.name == "adam":
        return torch.optim.Adam(groups, lr=chosen.lr, weight_decay=chosen.weight_decay, fused=True)
    return torch.optim.SGD(
        groups, lr=chosen.lr, weight_decay=chosen.weight_decay, momentum=chosen.sgd_momentum, fused=True
    )


def check_labels(method: Method, data: Data, settings: TrainSettings) -> None:
    """ValueError when a method that learns from labels has none."""
    if method.uses_labels and bool((data.labels < 0).all()):
        raise ValueError(f"{settings.method.name} learns from labels, and {settings.clips} has none")


def in_words(settings: TrainSettings) -> str:
    """`cmsf on flow, 20 epochs`: what the card of the weights says."""
    return f"{settings.method.name} on {settings.modality}, {settings.schedule.epochs} epochs"


def num_features(encoder: str) -> int:
    """Feature size of an encoder of the zoo, without making its weights."""
    from covid_cmsf.models import create_encoder

    with torch.device("meta"):
        return create_encoder(encoder).num_features


def _banks(settings: TrainSettings, network: Network, guides: list[Guide], processes: Processes) -> Banks:
    assert isinstance(settings.method, named.WithTarget)
    size = network.projector.layout.sizes[-1]
    sizes = {"target": size, **{guide.column: guide.size for guide in guides}}
    if isinstance(settings.method, named.Cmsf2qSettings):
        sizes[PREVIOUS] = size
    second = 0
    if isinstance(settings.method, named.CmsfSettings) and settings.method.constraint == "two_bank":
        second = settings.method.labeled_rows
    return Banks(settings.method.bank_rows, sizes, num_labeled_rows=second).to(processes.device)


def _memory(method: Method, data: Data, network: Network, processes: Processes) -> Memory | None:
    if method.remembers == "nothing":
        return None
    return Memory(len(data.views), network.projector.layout.sizes[-1]).to(processes.device)


def _on_device(
    network: Network, target: Network | None, settings: TrainSettings, processes: Processes
) -> tuple[Network, Network | None]:
    mode = settings.batch_norm.mode
    several_gpus = processes.count > 1 and processes.device.type == "cuda"
    if mode == "sync" and not several_gpus:
        raise ValueError("batch_norm.mode=sync needs several processes, each with a GPU; try local or frozen")
    if settings.batch_norm.groups > 1 and processes.count > 1:
        raise ValueError("batch_norm.groups imitates several processes in one; there are several")
    if settings.batch_norm.shuffle and settings.batch_norm.groups * processes.count == 1:
        logger.warning("batch_norm.shuffle has no effect in one process; batch_norm.groups=2 imitates two")
    both = [network] if target is None else [network, target]
    if mode == "sync" or (mode == "auto" and several_gpus):
        both = [synchronize(one) for one in both]
    for one in both:
        one.to(processes.device)
        train_mode_(one, frozen=mode == "frozen")
        if settings.compile:
            compile_(one.encoder)
    return both[0], both[1] if target is not None else None


def _wrapped(network: Network, processes: Processes) -> nn.Module:
    if processes.count == 1:
        return network
    return nn.parallel.DistributedDataParallel(network, broadcast_buffers=False)
