"""A head from its tensors alone: the layers are read off their names and shapes."""

from torch import Tensor

from covid_cmsf.models.heads import MLP, HeadLayout
from covid_cmsf.models.weights.layout import StateDict


def head_from(state: StateDict, *, place: str) -> MLP:
    """An `MLP` with exactly these tensors, in eval mode; ValueError when they are not those of one."""
    if not state:
        raise ValueError(f"{place} has no projection head beside this encoder")
    head = MLP(infer_layout(state, place=place))
    expected = {key: tensor.shape for key, tensor in head.state_dict().items()}
    if expected != {key: tensor.shape for key, tensor in state.items()}:
        odd = sorted(expected.keys() ^ state.keys()) or sorted(state)
        raise ValueError(f"{place}: the head is not a plain MLP of linear layers with bias ({', '.join(odd[:4])})")
    head.load_state_dict(state, strict=True)
    return head.eval()


def infer_layout(state: StateDict, *, place: str) -> HeadLayout:
    """Sizes and batch norms of the MLP that has these weights; ReLU layers have no tensors and are implied."""
    layers = [_weight(state, index, place) for index in sorted({int(key.split(".")[0]) for key in state})]
    linear = [i for i, weight in enumerate(layers) if weight.dim() == 2]
    if not linear or linear[0] != 0:
        raise ValueError(f"{place}: the head does not start with a linear layer")
    return HeadLayout(
        sizes=(layers[0].shape[1], *(layers[i].shape[0] for i in linear)),
        batch_norm=any(layers[i].dim() == 1 for i in range(linear[-1])),
        output_batch_norm=linear[-1] != len(layers) - 1,
    )


def _weight(state: StateDict, index: int, place: str) -> Tensor:
    if f"{index}.weight" not in state:
        raise ValueError(f"{place}: layer {index} of the head has no weight")
    return state[f"{index}.weight"]
