"""Rebuild a projection head from its tensors alone: the layers follow from their keys and shapes."""

from torch import Tensor

from covid_cmsf.models.checkpoints.layout import StateDict
from covid_cmsf.models.heads import MLP, HeadLayout


def build_head(state: StateDict, *, location: str) -> MLP:
    """Return an `MLP` with exactly these tensors, in eval mode; raise ValueError if they do not form one."""
    if not state:
        raise ValueError(f"{location} has no projection head for this encoder")
    head = MLP(infer_head_layout(state, location=location))
    expected = {key: tensor.shape for key, tensor in head.state_dict().items()}
    if expected != {key: tensor.shape for key, tensor in state.items()}:
        mismatched = sorted(expected.keys() ^ state.keys()) or sorted(state)
        raise ValueError(
            f"{location}: the head is not a plain MLP of linear layers with bias ({', '.join(mismatched[:4])})"
        )
    head.load_state_dict(state, strict=True)
    return head.eval()


def infer_head_layout(state: StateDict, *, location: str) -> HeadLayout:
    """Return sizes and batch norms of the MLP with these tensors; ReLU layers have none and are implied."""
    layers = [_weight(state, index, location) for index in sorted({int(key.split(".")[0]) for key in state})]
    linear = [i for i, weight in enumerate(layers) if weight.dim() == 2]
    if not linear or linear[0] != 0:
        raise ValueError(f"{location}: the head does not start with a linear layer")
    return HeadLayout(
        sizes=(layers[0].shape[1], *(layers[i].shape[0] for i in linear)),
        batch_norm=any(layers[i].dim() == 1 for i in range(linear[-1])),
        output_batch_norm=linear[-1] != len(layers) - 1,
    )


def _weight(state: StateDict, index: int, location: str) -> Tensor:
    if f"{index}.weight" not in state:
        raise ValueError(f"{location}: layer {index} of the head has no weight")
    return state[f"{index}.weight"]
