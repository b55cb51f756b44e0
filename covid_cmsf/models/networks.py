"""The networks of a run: encoder and heads together. A clip goes in, an embedding comes out.

`Embedder` (encoder, projector) is what a guide is. `Network` is the online network (encoder, projector, predictor) or
its target (encoder, projector), an exponential moving average of it.
"""

# B batch, D embedding size

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.encoder import Encoder
from covid_cmsf.models.heads import MLP, HeadLayout


class Embedder(nn.Module):
    """`projector(encoder(clip))`, scaled to unit length."""

    def __init__(self, encoder: Encoder, projector: MLP) -> None:
        super().__init__()
        if projector.layout.sizes[0] != encoder.num_features:
            raise ValueError(
                f"a projector for features of {projector.layout.sizes[0]} does not fit {encoder.name}, "
                f"which gives {encoder.num_features}"
            )
        self.encoder = encoder
        self.projector = projector

    def forward(self, clip: Tensor) -> Tensor:
        """(B, C, T, H, W) -> (B, D), unit vectors in fp32."""
        return nn.functional.normalize(self.projector(self.encoder(clip)).float(), dim=1)


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


def make_predictor(projector: MLP, encoder: Encoder) -> MLP:
    """CMSF's predictor: as wide inside as its projector, and back to the embedding."""
    size = projector.layout.sizes[-1]
    return MLP(HeadLayout(sizes=(size, 2 * encoder.num_features, size), batch_norm=True))


def make_target(online: Network) -> Network:
    """The target network: the same encoder and projector, no predictor, no gradients."""
    target = Network(copy.deepcopy(online.encoder), copy.deepcopy(online.projector))
    return target.requires_grad_(False)


@torch.no_grad()
def ema_update_(target: Network, online: Network, momentum: float) -> None:
    """target <- momentum * target + (1 - momentum) * online. Parameters only: batch norm keeps its own statistics."""
    pairs = [
        *_parameter_pairs(target.encoder, online.encoder),
        *_parameter_pairs(target.projector, online.projector),
    ]
    torch._foreach_lerp_([pair[0] for pair in pairs], [pair[1] for pair in pairs], 1 - momentum)


def network_metadata(
    online: Network, *, input_size: tuple[int, int, int], stride: int, modality: str, **fields: object
) -> EncoderMetadata:
    """What one must know to use the weights; `fields` are `mean`, `std`, `trained`."""
    return EncoderMetadata.model_validate(
        {
            "encoder": online.encoder.name,
            "in_channels": online.encoder.in_channels,
            "input_size": input_size,
            "stride": stride,
            "modality": modality,
            "bn_eps": _batch_norm_eps(online.encoder),
            "projector": online.projector.layout,
            **fields,
        }
    )


def _parameter_pairs(target: nn.Module, online: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(target.parameters(), online.parameters(), strict=True)


def _batch_norm_eps(encoder: Encoder) -> float:
    return next(
        float(module.eps) for module in encoder.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
    )
