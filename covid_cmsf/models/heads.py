"""Heads: feature -> embedding (projector, predictor) or feature -> logits.

Every head is an `MLP`, described by a `HeadLayout`. Its state-dict keys are those of the official CMSF code (`0`, `1`,
`3` with batch norm) and of MoCo v2 (`0`, `2` without). Shapes: B batch, D feature or embedding size.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor, nn

from covid_cmsf.config import Config


class HeadLayout(Config):
    """The layers of an `MLP`: `sizes` from input to output, ReLU between layers, batch norm before each ReLU or not.

    Example:
        >>> layout = cc.HeadLayout(sizes=(1024, 2048, 256), batch_norm=True)
    """

    sizes: tuple[int, ...] = Field(min_length=2)
    batch_norm: bool = False
    output_batch_norm: bool = False


class MLP(nn.Sequential):
    """Linear [-> batch norm] -> ReLU -> ... -> linear [-> batch norm]. The output is not normalized.

    Example:
        >>> projector = cc.MLP(cc.HeadLayout(sizes=(1024, 2048, 256), batch_norm=True))
        >>> projector(torch.randn(4, 1024)).shape
        torch.Size([4, 256])
    """

    def __init__(self, layout: HeadLayout) -> None:
        layers: list[nn.Module] = []
        last = len(layout.sizes) - 2
        for i, (size, next_size) in enumerate(pairwise(layout.sizes)):
            layers.append(nn.Linear(size, next_size))
            if layout.batch_norm if i < last else layout.output_batch_norm:
                layers.append(nn.BatchNorm1d(next_size))
            if i < last:
                layers.append(nn.ReLU(inplace=True))
        super().__init__(*layers)
        self.layout = layout


def projector_layout(num_features: int, *, output_batch_norm: bool = False) -> HeadLayout:
    """Return CMSF's projector: d -> 2d -> d/4, hidden batch norm (2048 -> 4096 -> 512 for ResNet-50)."""
    sizes = (num_features, 2 * num_features, num_features // 4)
    return HeadLayout(sizes=sizes, batch_norm=True, output_batch_norm=output_batch_norm)


def predictor_layout(num_features: int, *, embedding_size: int | None = None) -> HeadLayout:
    """Return CMSF's predictor: d/4 -> 2d -> d/4, hidden batch norm; `embedding_size` replaces d/4."""
    size = num_features // 4 if embedding_size is None else embedding_size
    return HeadLayout(sizes=(size, 2 * num_features, size), batch_norm=True)


def coclr_layout(num_features: int, *, embedding_size: int = 128) -> HeadLayout:
    """Return CoCLR's and MoCo v2's projector: d -> d -> 128, no batch norm."""
    return HeadLayout(sizes=(num_features, num_features, embedding_size))


HEADS: dict[str, Callable[[int], HeadLayout]] = {  # projectors by name, for an encoder of d features
    "cmsf": projector_layout,
    "coclr": coclr_layout,
    "supcon": lambda d: HeadLayout(sizes=(d, d, 128), batch_norm=True),
    "mlp": lambda d: HeadLayout(sizes=(d, d, d), batch_norm=True),
    "linear": lambda d: HeadLayout(sizes=(d, d)),
}


def head_layout(
    name: str, num_features: int, *, embedding_size: int | None = None, output_batch_norm: bool = False
) -> HeadLayout:
    """Return the layout of a projector of `HEADS`; `embedding_size` replaces the width of its output."""
    if name not in HEADS:
        raise ValueError(f"unknown head {name!r}; choose from {', '.join(HEADS)}")
    layout = HEADS[name](num_features)
    sizes = (*layout.sizes[:-1], embedding_size or layout.sizes[-1])
    return layout.model_copy(update={"sizes": sizes, "output_batch_norm": output_batch_norm})


class Standardize(nn.Module):
    """Standardize features (B, D) by a fixed mean and variance, which are buffers."""

    mean: Tensor
    variance: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))

    def forward(self, feature: Tensor) -> Tensor:
        """Return (B, D); the epsilon is that of the official CMSF code."""
        return (feature - self.mean) / (self.variance + 1e-5).sqrt()


class Classifier(nn.Module):
    """Classify features: (B, D) -> logits (B, num_classes).

    `normalize` first scales each feature to unit length, `batch_norm` then standardizes each dimension: CoCLR's linear
    probe has both, its fine-tuning has neither but a dropout of 0.9. `standardize` uses fixed statistics instead
    (`set_statistics_`), as CompRess does. `hidden` adds a hidden layer with ReLU.
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hidden: int | None = None,
        dropout: float = 0.0,
        normalize: bool = False,
        batch_norm: bool = False,
        standardize: bool = False,
    ) -> None:
        super().__init__()
        assert not (batch_norm and standardize)
        self.normalize = normalize
        self.norm: nn.Module = nn.BatchNorm1d(num_features) if batch_norm else nn.Identity()
        if standardize:
            self.norm = Standardize(num_features)
        self.dropout = nn.Dropout(dropout)
        hidden_sizes = () if hidden is None else (hidden,)
        self.mlp = MLP(HeadLayout(sizes=(num_features, *hidden_sizes, num_classes)))
        final = self.mlp[-1]
        assert isinstance(final, nn.Linear)
        nn.init.normal_(final.weight, std=0.01)  # as in CoCLR
        nn.init.zeros_(final.bias)

    def forward(self, feature: Tensor) -> Tensor:
        """Return logits (B, num_classes) for features (B, D)."""
        if self.normalize:
            feature = nn.functional.normalize(feature, dim=1)
        logits: Tensor = self.mlp(self.dropout(self.norm(feature)))
        return logits

    @torch.no_grad()
    def set_statistics_(self, mean: Tensor, variance: Tensor) -> None:
        """Set mean and variance (D,) of the features; with `normalize`, of features scaled to unit length."""
        assert isinstance(self.norm, Standardize)
        self.norm.mean.copy_(mean)
        self.norm.variance.copy_(variance)
