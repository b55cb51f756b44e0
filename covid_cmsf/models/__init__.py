"""Room 4: view -> feature -> embedding. The zoo, the heads, weights in and out.

from covid_cmsf.models import create_encoder, load_encoder
encoder = load_encoder("weights.safetensors")     # eval mode
encoder(clip)                                     # (B, C, T, H, W) -> (B, num_features)
"""

from covid_cmsf.models import c21d, resnet, s3d  # noqa: F401 (they register their encoders)
from covid_cmsf.models.embedder import Embedder
from covid_cmsf.models.encoder import Encoder, freeze_
from covid_cmsf.models.heads import (
    MLP,
    Classifier,
    HeadLayout,
    coclr_layout,
    predictor_layout,
    projector_layout,
)
from covid_cmsf.models.registry import create_encoder, encoder_entry, encoder_names
from covid_cmsf.models.weights.card import EncoderCard
from covid_cmsf.models.weights.load import Loaded, load_embedder, load_encoder, load_weights
from covid_cmsf.models.weights.ours import save_encoder

__all__ = [
    "MLP",
    "Classifier",
    "Embedder",
    "Encoder",
    "EncoderCard",
    "HeadLayout",
    "Loaded",
    "coclr_layout",
    "create_encoder",
    "encoder_entry",
    "encoder_names",
    "freeze_",
    "load_embedder",
    "load_encoder",
    "load_weights",
    "predictor_layout",
    "projector_layout",
    "save_encoder",
]
