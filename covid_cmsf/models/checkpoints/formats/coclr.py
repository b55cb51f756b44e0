"""CoCLR's checkpoints (Han et al. 2020): InfoNCE, UberNCE and CoCLR pretraining, classifiers, and the bare backbone.

CoCLR's S3D registers every layer twice, by name and inside `block1` to `block5`, so every tensor is stored twice.
Reading accepts either set or both; writing gives both, which CoCLR's code needs to load strictly.
"""

from covid_cmsf.models.checkpoints.layout import Branch, CheckpointLayout, StateDict

# Index 0 of block2 to block5 is a pooling layer.
BLOCKS = {
    "block1": ("Conv_1a",),
    "block2": ("MaxPool_2a", "Conv_2b", "Conv_2c"),
    "block3": ("MaxPool_3a", "Mixed_3b", "Mixed_3c"),
    "block4": ("MaxPool_4a", "Mixed_4b", "Mixed_4c", "Mixed_4d", "Mixed_4e", "Mixed_4f"),
    "block5": ("MaxPool_5a", "Mixed_5b", "Mixed_5c"),
}
ALIASES = {layer: f"{block}.{i}" for block, layers in BLOCKS.items() for i, layer in enumerate(layers)}
HEAD_LAYERS = {
    "2": "0",
    "4": "2",
}  # CoCLR's index -> MLP's; CoCLR's Sequential: 0 S3D, 1 pool, 2 convolution, 3 ReLU, 4 convolution


def coclr_keys(native_key: str) -> tuple[str, ...]:
    """`trunk.Conv_1a.bn1.bias` -> (`Conv_1a.bn1.bias`, `block1.0.bn1.bias`); () for a key of another architecture."""
    layer, _, rest = native_key.removeprefix("trunk.").partition(".")
    if layer not in ALIASES:
        return ()
    return f"{layer}.{rest}", f"{ALIASES[layer]}.{rest}"


PRETRAINING_LAYOUT = CheckpointLayout(
    name="CoCLR or InfoNCE pretraining checkpoint",
    branches=(
        Branch("online", "encoder_q", "encoder_q.0.", "encoder_q."),
        Branch("target", "encoder_k", "encoder_k.0.", "encoder_k."),
        Branch("guide", "sampler", "sampler.0.", "sampler."),
    ),
    file_keys=coclr_keys,
    head_layers=HEAD_LAYERS,
)
CLASSIFIER_LAYOUT = CheckpointLayout(
    name="CoCLR classifier", branches=(Branch("online", "backbone", "backbone."),), file_keys=coclr_keys
)
BACKBONE_LAYOUT = CheckpointLayout(
    name="CoCLR S3D backbone", branches=(Branch("online", "the network", ""),), file_keys=coclr_keys
)


def to_coclr(encoder: StateDict, head: StateDict | None) -> StateDict:
    """Return encoder (and head) with CoCLR's keys, both sets, as `encoder_q`; linear layers become convolutions.

    CoCLR's classifier code loads the result strictly after its own renaming of `encoder_q.0.` to `backbone.`.
    """
    converted: StateDict = {}
    for key, tensor in encoder.items():
        names = coclr_keys(key)
        if not names:
            raise ValueError(f"CoCLR's format has no key for {key}; only encoders of the s3d family can be written")
        converted |= {f"encoder_q.0.{name}": tensor for name in names}
    to_coclr_layer = {native: layer for layer, native in HEAD_LAYERS.items()}
    for key, tensor in (head or {}).items():
        layer, _, value = key.partition(".")
        if layer not in to_coclr_layer or value not in ("weight", "bias"):
            raise ValueError(f"CoCLR's head is linear, ReLU, linear; this one also has {key}: export without the head")
        converted[f"encoder_q.{to_coclr_layer[layer]}.{value}"] = (
            tensor[..., None, None, None] if value == "weight" else tensor
        )
    return converted
