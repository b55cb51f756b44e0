"""The networks of a run: online (encoder, projector, predictor) and target (encoder, projector), a slow copy of it."""

# B batch, D embedding

import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from covid_cmsf.models import MLP, Encoder, HeadLayout, create_encoder, load_weights
from covid_cmsf.models.heads import coclr_layout, projector_layout
from covid_cmsf.models.weights.card import EncoderCard
from covid_cmsf.training.method_settings import HeadSettings


class Network(nn.Module):
    """`predictor(projector(encoder(view)))`, scaled to unit length unless `unit_output` is False."""

    def __init__(
        self, encoder: Encoder, projector: MLP, *, predictor: MLP | None = None, unit_output: bool = True
    ) -> None:
        super().__init__()
        self.encoder, self.projector, self.predictor = encoder, projector, predictor
        self.unit_output = unit_output

    def forward(self, view: Tensor) -> Tensor:
        """(B, C, T, H, W) -> (B, D) in fp32."""
        output = self.projector(self.encoder(view))
        if self.predictor is not None:
            output = self.predictor(output)
        return nn.functional.normalize(output.float(), dim=1) if self.unit_output else output.float()


def start_network(
    name: str, *, in_channels: int, head: HeadLayout | HeadSettings, init: str | None, part: str | None
) -> tuple[Encoder, MLP, str]:
    """Encoder and projector, new or from the file `init`, and in words where they come from.

    A file must fit: its encoder and channels are those asked for, or it is an error.
    """
    if init is None:
        encoder = create_encoder(name, in_channels=in_channels)
        layout = head if isinstance(head, HeadLayout) else head_layout(head, encoder.num_features)
        return encoder, MLP(layout), "random weights"
    if not Path(init).exists():
        raise FileNotFoundError(f"init: no file {init}; train the start first, or leave init out for random weights")
    reuse = isinstance(head, HeadSettings) and head.reuse
    loaded = load_weights(init, part=part, encoder=name, in_channels=in_channels, keep_head=reuse)
    words = f"{loaded.card.trained} ({init})"
    if reuse:
        assert isinstance(head, HeadSettings) and loaded.projector is not None
        return loaded.encoder, _reused(loaded.projector, head, init), words + ", with its projector"
    layout = head if isinstance(head, HeadLayout) else head_layout(head, loaded.encoder.num_features)
    return loaded.encoder, MLP(layout), words


def head_layout(head: HeadSettings, num_features: int) -> HeadLayout:
    """The projector that the settings describe, on an encoder of `num_features`."""
    d = num_features
    layouts = {
        "cmsf": projector_layout(d),
        "coclr": coclr_layout(d),
        "supcon": HeadLayout(sizes=(d, d, 128), batch_norm=True),
        "mlp": HeadLayout(sizes=(d, d, d), batch_norm=True),
        "linear": HeadLayout(sizes=(d, d)),
    }
    layout = layouts[head.projector]
    sizes = (*layout.sizes[:-1], head.embedding_size or layout.sizes[-1])
    return layout.model_copy(update={"sizes": sizes, "output_batch_norm": head.output_batch_norm})


def predictor_for(projector: MLP, encoder: Encoder) -> MLP:
    """CMSF's predictor: as wide inside as its projector, and back to the embedding."""
    size = projector.layout.sizes[-1]
    return MLP(HeadLayout(sizes=(size, 2 * encoder.num_features, size), batch_norm=True))


def slow_copy(online: Network) -> Network:
    """The target network: the same encoder and projector, no predictor, no gradients."""
    target = Network(copy.deepcopy(online.encoder), copy.deepcopy(online.projector))
    return target.requires_grad_(False)


@torch.no_grad()
def ema_update_(target: Network, online: Network, momentum: float) -> None:
    """target <- momentum * target + (1 - momentum) * online. Parameters only: batch norm keeps its own statistics."""
    pairs = [*_pairs(target.encoder, online.encoder), *_pairs(target.projector, online.projector)]
    mine, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    torch._foreach_lerp_(mine, theirs, 1 - momentum)


def card_of(
    online: Network, *, input_size: tuple[int, int, int], stride: int, modality: str, **facts: object
) -> EncoderCard:
    """What one must know to use the weights; `facts` are `mean`, `std`, `trained`."""
    return EncoderCard.model_validate(
        {
            "encoder": online.encoder.name,
            "in_channels": online.encoder.in_channels,
            "input_size": input_size,
            "stride": stride,
            "modality": modality,
            "bn_eps": _bn_eps(online.encoder),
            "projector": online.projector.layout,
            **facts,
        }
    )


def _pairs(target: nn.Module, online: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(target.parameters(), online.parameters(), strict=True)


def _bn_eps(encoder: Encoder) -> float:
    return next(float(part.eps) for part in encoder.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))


def _reused(projector: MLP, head: HeadSettings, place: str) -> MLP:
    """The file's projector; with a new batch norm at its end where the settings want one and it has none."""
    layout = projector.layout
    if head.embedding_size not in (None, layout.sizes[-1]):
        raise ValueError(
            f"{place}: its projector ends in {layout.sizes[-1]} values, and method.head.embedding_size is "
            f"{head.embedding_size}; leave it out, or set method.head.reuse=false"
        )
    if not head.output_batch_norm or layout.output_batch_norm:
        return projector
    grown = MLP(layout.model_copy(update={"output_batch_norm": True}))
    grown.load_state_dict({**grown.state_dict(), **projector.state_dict()})
    return grown
