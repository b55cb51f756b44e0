"""Encoder and head together: a clip goes in, a unit vector comes out. This is what a guide is."""

# B batch, D embedding size

from torch import Tensor, nn

from covid_cmsf.models.encoder import Encoder
from covid_cmsf.models.heads import MLP


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
