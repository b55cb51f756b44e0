"""Fingerprint of a network: the same one means the same tensors. It proves that a frozen network has not changed."""

import hashlib

import torch
from torch import nn


def weights_sha256(module: nn.Module) -> str:
    """Over every parameter and buffer, batch-norm statistics included, and their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {tuple(plain.shape)} {plain.dtype}\n".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
