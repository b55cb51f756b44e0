"""Heads: feature -> embedding (projector, predictor) or feature -> class scores.

Every head is an `MLP`, so that a layout of three values describes it in a file. Its keys are those of the official
CMSF code (`0`, `1`, `3` with batch norm) and of MoCo v2 (`0`, `2` without).
"""

# B batch, D feature or embedding size

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
    """CMSF's projector: d -> 2d -> d/4, batch norm inside (2048 -> 4096 -> 512 for ResNet-50)."""
    sizes = (num_features, 2 * num_features, num_features // 4)
    return HeadLayout(sizes=sizes, batch_norm=True, output_batch_norm=output_batch_norm)


def predictor_layout(num_features: int, *, embedding_size: int | None = None) -> HeadLayout:
    """CMSF's predictor of the online network: d/4 -> 2d -> d/4, batch norm inside; `embedding_size` replaces d/4."""
    size = num_features // 4 if embedding_size is None else embedding_size
    return HeadLayout(sizes=(size, 2 * num_features, size), batch_norm=True)


def coclr_layout(num_features: int, *, embedding_size: int = 128) -> HeadLayout:
    """CoCLR's and MoCo v2's head: d -> d -> 128, no batch norm."""
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
    """(B, D) minus a fixed mean, over a fixed deviation. They are set once, and are part of the state."""

    mean: Tensor
    variance: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))

    def forward(self, feature: Tensor) -> Tensor:
        """With the epsilon of the official code inside the root."""
        return (feature - self.mean) / (self.variance + 1e-5).sqrt()


class Classifier(nn.Module):
    """Features (B, D) -> class scores (B, num_classes).

    `normalize` scales each feature to unit length first, `batch_norm` then standardizes each dimension:
    CoCLR's linear probe has both, its fine-tuning has neither but a dropout of 0.9. `standardize` does it by fixed
    statistics instead (`set_statistics_`), as CompRess does. `hidden` puts one layer with a ReLU before the last.
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
        inner = () if hidden is None else (hidden,)
        self.mlp = MLP(HeadLayout(sizes=(num_features, *inner, num_classes)))
        final = self.mlp[-1]
        assert isinstance(final, nn.Linear)
        nn.init.normal_(final.weight, std=0.01)  # as in CoCLR
        nn.init.zeros_(final.bias)

    def forward(self, feature: Tensor) -> Tensor:
        """(B, D) -> (B, num_classes), before the softmax."""
        if self.normalize:
            feature = nn.functional.normalize(feature, dim=1)
        logits: Tensor = self.mlp(self.dropout(self.norm(feature)))
        return logits

    @torch.no_grad()
    def set_statistics_(self, mean: Tensor, variance: Tensor) -> None:
        """Statistics (D,) of features as this classifier sees them, after scaling to unit length."""
        assert isinstance(self.norm, Standardize)
        self.norm.mean.copy_(mean)
        self.norm.variance.copy_(variance)
