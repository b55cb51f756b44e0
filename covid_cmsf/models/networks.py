"""Networks of an encoder and heads: clip -> embedding.

online = create_network("s3d", modality="rgb", head="cmsf", predictor=True)
target = make_target(online)              # encoder and projector, no gradients
guide = load_guide("infonce-flow.pt")     # frozen
ema_update_(target, online, 0.99)

Shapes: B batch, D embedding size.
"""

import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from covid_cmsf.models.checkpoints.load import LoadedWeights, load_weights
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.encoder import Encoder, freeze_, weights_sha256
from covid_cmsf.models.heads import MLP, head_layout, predictor_layout
from covid_cmsf.models.input_transform import InputTransform
from covid_cmsf.models.named_networks import load_named_network, named_library, own_transform
from covid_cmsf.models.registry import create_model
from covid_cmsf.views.modalities import FlowStyle, get_modality


class Network(nn.Module):
    """`predictor(projector(encoder(view)))`, scaled to unit length unless `unit_output` is False.

    Without a predictor it is a target network or a guide. `dropout` is applied to the encoder's feature in training.

    Example:
        >>> encoder = cc.create_model("s3d_tiny")
        >>> projector = cc.MLP(cc.HeadLayout(sizes=(encoder.num_features, 64)))
        >>> cc.Network(encoder, projector).dim
        64
    """

    def __init__(
        self,
        encoder: Encoder,
        projector: MLP,
        *,
        predictor: MLP | None = None,
        unit_output: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if projector.layout.sizes[0] != encoder.num_features:
            raise ValueError(
                f"a projector for {projector.layout.sizes[0]} features does not fit {encoder.name}, "
                f"which has {encoder.num_features}"
            )
        self.encoder, self.projector, self.predictor = encoder, projector, predictor
        self.unit_output, self.dropout = unit_output, dropout

    @property
    def dim(self) -> int:
        """Return the embedding size D."""
        head = self.projector if self.predictor is None else self.predictor
        return head.layout.sizes[-1]

    def forward(self, view: Tensor) -> Tensor:
        """Return embeddings (B, D) in fp32 for views (B, C, T, H, W)."""
        feature = self.encoder(view)
        if self.dropout:
            feature = nn.functional.dropout(feature, self.dropout, training=self.training)
        output = self.projector(feature)
        if self.predictor is not None:
            output = self.predictor(output)
        return nn.functional.normalize(output.float(), dim=1) if self.unit_output else output.float()


def create_network(
    name: str,
    *,
    modality: str = "rgb",
    head: str = "cmsf",
    predictor: bool = False,
    embedding_size: int | None = None,
    output_batch_norm: bool = False,
    flow_style: FlowStyle = "motion",
) -> Network:
    """Create a registered encoder with a projector (and a predictor), all with random weights, in train mode.

    `head` is one of `HEADS`; `embedding_size` replaces the width of its output.

    Example:
        >>> online = cc.create_network("s3d_tiny", modality="flow", head="cmsf", predictor=True)
        >>> online(torch.randn(4, 2, 8, 64, 64)).shape == (4, online.dim)
        True
    """
    encoder = create_model(name, in_channels=get_modality(modality, flow_style=flow_style).num_channels)
    projector = MLP(
        head_layout(head, encoder.num_features, embedding_size=embedding_size, output_batch_norm=output_batch_norm)
    )
    return Network(encoder, projector, predictor=make_predictor(projector, encoder) if predictor else None)


def make_predictor(projector: MLP, encoder: Encoder) -> MLP:
    """Create CMSF's predictor for the output of `projector`."""
    return MLP(predictor_layout(encoder.num_features, embedding_size=projector.layout.sizes[-1]))


def make_target(online: Network) -> Network:
    """Copy encoder and projector into a target network: no predictor, no gradients.

    Example:
        >>> online = cc.create_network("s3d_tiny", predictor=True)
        >>> target = cc.make_target(online)
    """
    target = Network(copy.deepcopy(online.encoder), copy.deepcopy(online.projector))
    return target.requires_grad_(False)


@torch.no_grad()
def ema_update_(target: Network, online: Network, momentum: float) -> None:
    """target <- momentum * target + (1 - momentum) * online. Parameters only: batch norm keeps its own statistics.

    Example:
        >>> online = cc.create_network("s3d_tiny", predictor=True)
        >>> target = cc.make_target(online)
        >>> cc.ema_update_(target, online, 0.99)
    """
    pairs = [
        *_parameter_pairs(target.encoder, online.encoder),
        *_parameter_pairs(target.projector, online.projector),
    ]
    torch._foreach_lerp_([pair[0] for pair in pairs], [pair[1] for pair in pairs], 1 - momentum)


class Guide(nn.Module):
    """A frozen network that gives unit vectors; `modality` is its input, `column` its column in the memory bank.

    With a bare encoder the embedding is its feature. `transform` is the preprocessing of a network of another library,
    which was not trained on the views of this package.

    Example:
        >>> guide = cc.Guide(cc.create_model("s3d_tiny"), modality="rgb", description="random weights")
        >>> guide.check_unchanged()
    """

    def __init__(
        self,
        network: Network | Encoder,
        *,
        modality: str,
        description: str,
        column: str | None = None,
        transform: InputTransform | None = None,
    ) -> None:
        super().__init__()
        self.transform = transform
        self.network, self.modality, self.description = freeze_(network), modality, description
        self.column = f"guide_{modality}" if column is None else column
        self.fingerprint = weights_sha256(self.network)

    @property
    def dim(self) -> int:
        """Return the embedding size D."""
        return self.network.dim if isinstance(self.network, Network) else self.network.num_features

    @torch.no_grad()
    def forward(self, view: Tensor) -> Tensor:
        """Return unit vectors (B, D) in fp32 for views (B, C, T, H, W) of training."""
        return self.embed(view if self.transform is None else self.transform.from_view(view))

    @torch.no_grad()
    def embed(self, clip: Tensor) -> Tensor:
        """Return unit vectors (B, D) in fp32 for clips that are prepared as the network takes them."""
        return nn.functional.normalize(self.network(clip).float(), dim=1)

    def check_unchanged(self) -> None:
        """Raise RuntimeError if a weight or a batch-norm statistic differs from when the guide was made."""
        if weights_sha256(self.network) != self.fingerprint:
            raise RuntimeError(
                f"the weights of the frozen guide {self.description} have changed; the results are invalid"
            )


def load_guide(
    path: str | Path, *, branch: str | None = None, layer: str = "projector", modality: str | None = None
) -> Guide:
    """Load a frozen guide from a checkpoint, a run folder, or by name from another library (`timm:NAME`).

    `layer` is the output that is compared: `projector`, or `encoder` for its feature. `modality` is that of the file
    unless given.

    Example:
        >>> guide = cc.load_guide("infonce-flow.pt")
        >>> guide.modality
        'flow'
    """
    if layer not in ("projector", "encoder"):
        raise ValueError(f"unknown layer {layer!r}; choose from projector, encoder")
    if named_library(path) is not None:
        return make_named_guide(str(path))
    loaded = load_weights(path, branch=branch, keep_head=layer == "projector")
    return make_guide(loaded, path=path, modality=loaded.metadata.modality if modality is None else modality)


def make_guide(loaded: LoadedWeights, *, path: str | Path, modality: str, column: str | None = None) -> Guide:
    """Freeze loaded weights into a guide."""
    network = loaded.encoder if loaded.projector is None else Network(loaded.encoder, loaded.projector)
    description = f"{path} ({modality}, {loaded.metadata.encoder}, {loaded.metadata.trained})"
    is_named = named_library(loaded.metadata.encoder) is not None
    transform = InputTransform.from_metadata(loaded.metadata) if is_named else None
    return Guide(network, modality=modality, description=description, column=column, transform=transform)


def make_named_guide(address: str, *, column: str | None = None) -> Guide:
    """Load a network of another library as a guide: its features are compared, with its own preprocessing."""
    loaded = load_named_network(address)
    metadata = loaded.network.metadata
    return Guide(
        loaded.network,
        modality=metadata.modality,
        description=f"{address} ({metadata.modality}, {metadata.trained})",
        column=column,
        transform=own_transform(loaded),
    )


def network_metadata(
    online: Network, *, input_size: tuple[int, int, int], stride: int, modality: str, **fields: object
) -> EncoderMetadata:
    """Return the metadata to store with the weights; `fields` are `mean`, `std`, `trained`, ..."""
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
