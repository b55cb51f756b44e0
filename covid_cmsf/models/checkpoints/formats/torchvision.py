"""torchvision's weights: S3D (Kinetics-400) and ResNets (ImageNet)."""

import re

from covid_cmsf.models.checkpoints.layout import Branch, CheckpointLayout
from covid_cmsf.models.s3d import TABLE

POSITIONS = {layer: i for i, layer in enumerate(TABLE)}  # torchvision numbers the layers, pools included
# Inside a layer, torchvision has a Sequential of Sequentials (convolution 0, batch norm 1).
INNER = {"conv1": "0.0", "bn1": "0.1", "conv2": "1.0", "bn2": "1.1", "conv": "0", "bn": "1"}
KINETICS_MEAN, KINETICS_STD = (0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989)


def torchvision_s3d_keys(native_key: str) -> tuple[str, ...]:
    """`trunk.Mixed_3b.branch1.1.conv2.weight` -> (`features.5.branch1.1.1.0.weight`,)."""
    layer, _, rest = native_key.removeprefix("trunk.").partition(".")
    if layer not in POSITIONS or "gating" in rest:
        return ()
    rest = rest.replace("branch0.0.", "branch0.")  # torchvision's branch 0 is the layer itself, not a Sequential of one
    rest = re.sub(r"\b(conv1|conv2|conv|bn1|bn2|bn)\b", lambda found: INNER[found.group()], rest)
    return (f"features.{POSITIONS[layer]}.{rest}",)


def resnet_keys(native_key: str) -> tuple[str, ...]:
    """`trunk.layer1.0.conv1.weight` -> (`layer1.0.conv1.weight`,)."""
    name = native_key.removeprefix("trunk.")
    return (name,) if re.match(r"(conv1|bn1|layer[1-4])\.", name) else ()


S3D_LAYOUT = CheckpointLayout(
    name="torchvision S3D",
    branches=(Branch("online", "the network", ""),),
    file_keys=torchvision_s3d_keys,
    allowed_extra=("classifier.",),
    bn_eps=1e-3,
    mean=KINETICS_MEAN,
    std=KINETICS_STD,
)
RESNET_LAYOUT = CheckpointLayout(
    name="torchvision ResNet",
    branches=(Branch("online", "the network", "", "fc."),),
    file_keys=resnet_keys,
    allowed_extra=("fc.",),
)
