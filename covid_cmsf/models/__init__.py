"""Room 4: view -> feature -> embedding. The zoo, the heads, weights in and out.

from covid_cmsf.models import create_model, load_encoder
encoder = load_encoder("weights.safetensors")     # eval mode
encoder(clip)                                     # (B, C, T, H, W) -> (B, num_features)
"""

from covid_cmsf.models import r2plus1d, resnet, s3d  # noqa: F401 (they register their encoders)
from covid_cmsf.models.checkpoints.formats.native import save_encoder
from covid_cmsf.models.checkpoints.load import LoadedWeights, load_embedder, load_encoder, load_weights
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.encoder import Encoder, freeze_
from covid_cmsf.models.heads import (
    MLP,
    Classifier,
    HeadLayout,
    coclr_layout,
    predictor_layout,
    projector_layout,
)
from covid_cmsf.models.networks import Embedder
from covid_cmsf.models.registry import create_model, encoder_entry, list_models

__all__ = [
    "MLP",
    "Classifier",
    "Embedder",
    "Encoder",
    "EncoderMetadata",
    "HeadLayout",
    "LoadedWeights",
    "coclr_layout",
    "create_model",
    "encoder_entry",
    "freeze_",
    "list_models",
    "load_embedder",
    "load_encoder",
    "load_weights",
    "predictor_layout",
    "projector_layout",
    "save_encoder",
]
