"""Files as other programs write them, built from the key lists beside this file."""

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from covid_cmsf.models.checkpoints.formats.coclr import ALIASES

DATA = Path(__file__).parent / "data"


def random_tensor(key: str, shape: list[int], generator: torch.Generator) -> Tensor:
    """Numbers as a trained network could have them: small weights, norms near one, positive variances."""
    if key.endswith("num_batches_tracked"):
        return torch.tensor(7)
    if key.endswith("running_var") or (len(shape) == 1 and key.endswith("weight")):
        return torch.rand(shape, generator=generator) + 0.5
    fan_in = max(1, int(torch.tensor(shape[1:]).prod())) if len(shape) > 1 else 100
    return torch.randn(shape, generator=generator) * math.sqrt(2 / fan_in)


def coclr_s3d(seed: int) -> dict[str, Tensor]:
    """CoCLR's S3D: 924 keys for 462 tensors, each under a name and under its block."""
    generator = torch.Generator().manual_seed(seed)
    shapes = json.loads((DATA / "coclr_keys.json").read_text())["s3d"]
    state = {key: random_tensor(key, shape, generator) for key, shape in shapes.items() if "block" not in key}
    for layer, alias in ALIASES.items():
        state |= {key.replace(layer, alias, 1): tensor for key, tensor in state.items() if key.startswith(f"{layer}.")}
    assert {key: list(tensor.shape) for key, tensor in state.items()} == shapes
    return state


def coclr_checkpoint(kind: str) -> dict[str, Tensor]:
    """The state dict of an `infonce` or `coclr` model; every copy of the encoder has its own numbers."""
    keys = json.loads((DATA / "coclr_keys.json").read_text())
    generator = torch.Generator().manual_seed(9)
    state = {key: random_tensor(key, shape, generator) for key, shape in keys[kind].items()}
    for seed, prefix in enumerate(keys[f"{kind}_prefixes_holding_s3d"]):
        state |= {f"{prefix}{key}": tensor for key, tensor in coclr_s3d(seed).items()}
    return state
