"""Encoders, heads and networks, and reading and writing their checkpoints.

encoder = load_encoder("runs/cmsf")               # a checkpoint or a run folder; eval mode
clip = encoder.preprocess(frames)                 # (T, H, W, 3) uint8 -> (C, T, H, W), as in training
encoder(clip[None])                               # (B, C, T, H, W) -> (B, num_features)
encoder.forward_features(clip[None])              # the feature map before pooling
create_model("s3d", in_channels=2)                # random weights; `list_models()` has the names
"""

from covid_cmsf.models import r2plus1d, resnet, s3d  # noqa: F401 (imported for their `register_encoder` calls)
from covid_cmsf.models.checkpoints.formats.native import save_encoder
from covid_cmsf.models.checkpoints.load import LoadedWeights, load_encoder, load_weights
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.encoder import Encoder, freeze_
from covid_cmsf.models.heads import (
    HEADS,
    MLP,
    Classifier,
    HeadLayout,
    coclr_layout,
    head_layout,
    predictor_layout,
    projector_layout,
)
from covid_cmsf.models.input_transform import InputTransform
from covid_cmsf.models.networks import (
    Guide,
    Network,
    create_network,
    ema_update_,
    load_guide,
    make_guide,
    make_predictor,
    make_target,
)
from covid_cmsf.models.registry import create_model, encoder_entry, list_models

__all__ = [
    "HEADS",
    "MLP",
    "Classifier",
    "Encoder",
    "EncoderMetadata",
    "Guide",
    "HeadLayout",
    "InputTransform",
    "LoadedWeights",
    "Network",
    "coclr_layout",
    "create_model",
    "create_network",
    "ema_update_",
    "encoder_entry",
    "freeze_",
    "head_layout",
    "list_models",
    "load_encoder",
    "load_guide",
    "load_weights",
    "make_guide",
    "make_predictor",
    "make_target",
    "predictor_layout",
    "projector_layout",
    "save_encoder",
]
