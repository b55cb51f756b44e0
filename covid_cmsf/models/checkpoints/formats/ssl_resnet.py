"""Checkpoints of MSF, CMSF, MoCo v2 and BYOL-like code: torchvision's keys with a prefix, `fc` as projector.

`module.` (DataParallel) is removed from the keys before they are compared with this table.
"""

from covid_cmsf.models.checkpoints.formats.torchvision import resnet_keys
from covid_cmsf.models.checkpoints.layout import Branch, CheckpointLayout

NETWORKS = {  # prefix in the file -> branch
    "encoder_q": "online",  # MSF, CMSF, MoCo v2
    "encoder_t": "target",  # CMSF
    "encoder_k": "target",  # MoCo v2
    "online_encoder": "online",  # BYOL-like
    "target_encoder": "target",
    "online_network": "online",
    "target_network": "target",
    "base_encoder": "online",  # MoCo v3
    "momentum_encoder": "target",
    "backbone": "online",
}

PRETRAINING_LAYOUT = CheckpointLayout(
    name="self-supervised ResNet (MSF, CMSF, MoCo v2, BYOL)",
    branches=tuple(Branch(name, prefix, f"{prefix}.", f"{prefix}.fc.") for prefix, name in NETWORKS.items()),
    file_keys=resnet_keys,
    allowed_extra=("fc.",),
)
