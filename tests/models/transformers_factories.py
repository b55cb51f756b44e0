"""Tiny networks of transformers with random weights, written as `save_pretrained` writes them."""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers: Any = pytest.importorskip("transformers", reason="the extra transformers is not installed")
SIZE = 32
VIDEOMAE = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": SIZE,
    "num_frames": 4,
    "decoder_hidden_size": 16,
    "decoder_num_attention_heads": 2,
    "decoder_num_hidden_layers": 1,
    "decoder_intermediate_size": 16,
}
VJEPA2 = {
    "hidden_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "crop_size": SIZE,
    "frames_per_clip": 4,
    "mlp_ratio": 2.0,
    "pred_hidden_size": 24,
    "pred_num_attention_heads": 2,
    "pred_num_hidden_layers": 1,
    "num_pooler_layers": 1,
}


def save_tiny(folder: Path, architecture: str, *, seed: int = 0) -> Any:
    """Write configuration, weights and processor of a tiny network to a folder; return it in eval mode."""
    torch.manual_seed(seed)
    kind = getattr(transformers, architecture)
    is_videomae = architecture.startswith("VideoMAE")
    changes = {"use_mean_pooling": "Classification" in architecture} if is_videomae else {}
    model = kind(kind.config_class(**(VIDEOMAE if is_videomae else VJEPA2), **changes))
    for parameter in model.parameters():  # layer norms and biases are no identities
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    processor_of(architecture).save_pretrained(folder)
    return model.eval()


def processor_of(architecture: str, *, resample: int = 2) -> Any:
    """Return the processor of a tiny network; `resample` is Pillow's code of the interpolation."""
    if architecture.startswith("VideoMAE"):
        size = {"height": SIZE, "width": SIZE}
        return transformers.VideoMAEImageProcessor(size={"shortest_edge": 40}, crop_size=size, resample=resample)
    return transformers.VJEPA2VideoProcessor(crop_size=SIZE, resample=resample)
