"""DIS, Farneback and RAFT: flow of known motion, what the store records, and that stores are not mixed."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torchvision.models import get_model

from covid_cmsf.clips.records import StoreInfo
from covid_cmsf.clips.store import ClipStore
from preprocess.config import make_store_flow, make_store_info
from preprocess.flow import ALGORITHMS, FlowParameters, backend_version, choose_backend, make_flow
from preprocess.flow.other_algorithms import DisParameters, FarnebackParameters, RaftParameters
from preprocess.store import prepare_store
from tests.factories import moving_square, write_video
from tests.preprocess.commands import preprocess


def shifted_pair(*, dx: int, dy: int, size: int = 96) -> np.ndarray:
    """Two crops of one smooth texture, of which the second has moved."""
    noise = np.random.default_rng(0).integers(0, 256, (size + 40, size + 40)).astype(np.float32)
    texture = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3), None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)
    first = texture[20 : 20 + size, 20 : 20 + size]
    second = texture[20 - dy : 20 - dy + size, 20 - dx : 20 - dx + size]
    return np.stack([first, second])


@pytest.mark.parametrize("name", ["dis", "farneback"])
def test_a_shift_is_found_in_pixels_x_first(name: str) -> None:
    flow = make_flow(name)(shifted_pair(dx=3, dy=-2))
    assert flow.shape == (1, 2, 96, 96) and flow.dtype == np.float32
    inner = flow[0, :, 16:-16, 16:-16]
    assert abs(np.median(inner[0]) - 3) < 0.2 and abs(np.median(inner[1]) + 2) < 0.2
    assert make_flow(name)(shifted_pair(dx=0, dy=0)[:1]).shape == (0, 2, 96, 96)


def test_parameters_are_those_of_the_backend() -> None:
    pair = shifted_pair(dx=3, dy=0)
    quick = make_flow("dis", DisParameters(preset="ultrafast"))(pair)
    assert not np.array_equal(quick, make_flow("dis")(pair))
    smooth = make_flow("farneback", FarnebackParameters(winsize=31))(pair)
    assert not np.array_equal(smooth, make_flow("farneback")(pair))
    with pytest.raises(ValueError, match="flow backend 'dis' takes DisParameters, not FlowParameters"):
        make_flow("dis", FlowParameters())
    with pytest.raises(ValueError, match="flow backend 'dis' has no device"):
        make_flow("dis", device="cpu")
    with pytest.raises(ValueError, match="at least 16 pixels"):
        make_flow("dis")(np.zeros((2, 8, 8), np.uint8))
    assert all(choose_backend(name) == name and backend_version(name) for name in ALGORITHMS)


@pytest.mark.slow
def test_raft_gives_the_flow_of_torchvision_and_needs_its_weights(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="flow backend 'raft' needs weights of torchvision: no file ''"):
        make_flow("raft")
    torch.manual_seed(0)
    network = get_model("raft_small", weights=None).eval()
    torch.save(network.state_dict(), tmp_path / "raft.pth")
    parameters = RaftParameters(weights=str(tmp_path / "raft.pth"), iterations=1)
    pair = shifted_pair(dx=2, dy=0, size=128)
    images = torch.from_numpy(pair)[:, None].expand(-1, 3, -1, -1).float() / 127.5 - 1
    with torch.inference_mode():
        expected = network(images[:1], images[1:], num_flow_updates=1)[-1].numpy()
    found = make_flow("raft", parameters, device="cpu")
    assert np.allclose(found(pair), expected, atol=1e-4)
    assert found(pair[:, :60, :80]).shape == (1, 2, 60, 80)  # enlarged for the network
    with pytest.raises(ValueError, match="does not fit raft_large"):
        make_flow("raft", parameters.model_copy(update={"network": "raft_large"}))


def store_info(out: Path, backend: str, parameters: str = "") -> StoreInfo:
    return make_store_info(
        out,
        modalities="rgb,flow",
        short_edge=32,
        max_frames=0,
        quality=18,
        flow_backend=backend,
        flow_bound="size",
        flow_size="stored",
        flow_parameters=parameters,
        software="a test",
    )


def test_the_store_records_the_algorithm_and_refuses_another(tmp_path: Path) -> None:
    info = store_info(tmp_path, "dis", "preset=fast")
    kept = prepare_store(tmp_path / "store", info)
    assert kept.flow is not None and (kept.flow.algorithm, kept.flow.backend) == ("dis", "dis")
    assert kept.flow.parameters == {"preset": "fast"}
    flow = make_store_flow(kept, None)
    assert flow is not None and flow.name == "dis"
    with pytest.raises(ValueError, match=r"flow.algorithm is 'dis' in the store, 'farneback' now"):
        prepare_store(tmp_path / "store", store_info(tmp_path, "farneback"))
    with pytest.raises(ValueError, match="preset"):
        prepare_store(tmp_path / "store", store_info(tmp_path, "dis"))
    with pytest.raises(ValueError, match="unknown key 'warps'"):
        store_info(tmp_path, "dis", "warps=3")


@pytest.mark.slow
def test_a_store_with_dis_is_read_as_any_other(tmp_path: Path) -> None:
    write_video(tmp_path / "videos" / "a" / "v.mp4", moving_square(12, seed=0))
    options = ("--flow-backend", "dis", "--flow-parameters", "preset=fast")
    done = preprocess(tmp_path / "videos", tmp_path / "clips", *options, layout="flat")
    assert done.returncode == 0, done.stderr
    store = ClipStore.open(tmp_path / "clips")
    assert store.info.flow is not None and store.info.flow.algorithm == "dis"
    assert store.read_raw(store.records[0], "flow", [0, 5]).shape[:2] == (2, 2)
