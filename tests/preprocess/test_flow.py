"""The three TV-L1 backends: what they accept, that they agree, and that the flow is right.

OpenCV's step sizes let rounding errors grow: with noise of a millionth of a gray level, the flow between two equal
frames is 0.01 px on average and 0.7 px in places. So numba, which rounds like OpenCV, is compared exactly, and
limits below that for torch would test chance.
"""
# N pairs, H W pixels

import subprocess
import sys

import cv2
import numpy as np
import pytest
from pydantic import ValidationError

from preprocess.flow import (
    ALGORITHMS,
    BACKENDS,
    FlowBackend,
    FlowParameters,
    backend_version,
    choose_backend,
    make_flow,
    to_gray,
)
from preprocess.flow.base import level_sizes
from tests.preprocess.test_flow_numba import texture

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

SIZE = (60, 84)
LIMITS = {"numba": 0.001, "numba-fast": 0.05, "torch": 0.05}  # px, mean difference to OpenCV
NOT_DEFAULT = [
    {"gamma": 0.5},
    {"median_filtering": 1},
    {"median_filtering": 3},
    {"nscales": 1},
    {"nscales": 3, "scale_step": 0.5, "warps": 2},
    {"tau": 0.1, "lambda": 0.1, "theta": 0.4, "epsilon": 0.02},
    {"inner_iterations": 4, "outer_iterations": 3},
]


def smooth_flow(height: int, width: int, size: float = 1.5) -> np.ndarray:
    """(2, H, W): a slow swirl of at most `size` pixels."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    return size * np.stack([np.sin(3 * y + 1), np.cos(4 * x)]).astype(np.float32)


def warped_pair(second: np.ndarray, flow: np.ndarray) -> np.ndarray:
    """(2, H, W) uint8 whose flow is `flow` (2, H, W): the first frame is `second` seen through it."""
    y, x = np.mgrid[: second.shape[0], : second.shape[1]].astype(np.float32)
    first = cv2.remap(second, x + flow[0], y + flow[1], cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)
    return np.stack([first, second])


def textured_pair(height: int = SIZE[0], width: int = SIZE[1], seed: int = 0) -> np.ndarray:
    return warped_pair(texture(height, width, seed), smooth_flow(height, width))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Mean end-point difference of two flows (..., 2, H, W)."""
    return float(np.linalg.norm(a - b, axis=-3).mean())


@pytest.fixture(params=BACKENDS)
def flow(request: pytest.FixtureRequest) -> FlowBackend:
    return make_flow(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("backend", LIMITS)
def test_backends_agree_with_opencv(backend: str) -> None:
    pair = textured_pair()
    assert distance(make_flow(backend)(pair), make_flow("opencv")(pair)) < LIMITS[backend]


@pytest.mark.parametrize("backend", LIMITS)
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_few_iterations_agree_to_the_last_digits(backend: str, gamma: float) -> None:
    parameters = FlowParameters(gamma=gamma, nscales=2, warps=2, inner_iterations=2, outer_iterations=2)
    pair = textured_pair()
    assert distance(make_flow(backend, parameters)(pair), make_flow("opencv", parameters)(pair)) < 1e-4


@pytest.mark.parametrize("backend", LIMITS)
@pytest.mark.parametrize("values", NOT_DEFAULT, ids=str)
def test_backends_agree_with_other_parameters(backend: str, values: dict[str, float]) -> None:
    parameters = FlowParameters.model_validate(values)
    pair = textured_pair()
    assert distance(make_flow(backend, parameters)(pair), make_flow("opencv", parameters)(pair)) < LIMITS[backend]


@pytest.mark.parametrize("size", [(3, 3), (5, 40), (16, 16), (17, 31), (24, 24), (41, 33), (9, 700)])
def test_tiny_and_odd_sizes_agree(size: tuple[int, int]) -> None:
    pair = textured_pair(*size)
    flows = {name: make_flow(name)(pair) for name in BACKENDS}
    assert all(result.shape == (1, 2, *size) for result in flows.values())
    assert distance(flows["numba"], flows["opencv"]) < LIMITS["numba"]
    assert distance(flows["numba-fast"], flows["opencv"]) < 0.05
    assert distance(flows["torch"], flows["opencv"]) < 0.05


def test_flow_of_a_frame_with_itself_is_zero(flow: FlowBackend) -> None:
    frame = texture(*SIZE)
    assert np.abs(flow(np.stack([frame, frame]))).mean() < 0.02


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_repeated_frames_in_a_clip_give_opencvs_flow(gamma: float) -> None:
    first, second = textured_pair()
    clip = np.stack([first, first, second, second, first])
    parameters = FlowParameters(gamma=gamma)
    ours, opencv = make_flow("numba", parameters)(clip), make_flow("opencv", parameters)(clip)
    assert not opencv[[0, 2]].any()
    assert distance(ours, opencv) < LIMITS["numba"]


@pytest.mark.parametrize(("dx", "dy"), [(1, 0), (0, -1), (2, 1)])
def test_translation_is_recovered(flow: FlowBackend, dx: int, dy: int) -> None:
    scene = texture(SIZE[0] + 8, SIZE[1] + 8)
    first = scene[4 : 4 + SIZE[0], 4 : 4 + SIZE[1]]
    second = scene[4 - dy : 4 - dy + SIZE[0], 4 - dx : 4 - dx + SIZE[1]]
    result = flow(np.stack([first, second]))[0, :, 6:-6, 6:-6]
    assert np.abs(result - np.array([dx, dy]).reshape(2, 1, 1)).mean() < 0.05


def test_warped_pair_gives_its_flow_no_worse_than_opencv() -> None:
    truth = smooth_flow(*SIZE)
    errors = {name: distance(make_flow(name)(textured_pair())[0], truth) for name in BACKENDS}
    assert errors["opencv"] < 0.2
    assert errors["numba"] < errors["opencv"] + LIMITS["numba"]
    assert errors["numba-fast"] < 1.05 * errors["opencv"] + 0.005
    assert errors["torch"] < 1.05 * errors["opencv"] + 0.005


def test_flip_negates_horizontal_flow(flow: FlowBackend) -> None:
    pair = textured_pair()
    result, flipped = flow(pair), flow(np.ascontiguousarray(pair[:, :, ::-1]))[..., ::-1]
    assert distance(result, flipped * np.array([-1, 1]).reshape(2, 1, 1)) < 0.03


def test_one_object_may_see_many_sizes(flow: FlowBackend) -> None:
    large, small = textured_pair(72, 96), textured_pair(24, 24)
    fresh = make_flow(flow.name)(large)
    first = flow(large)
    flow(small)
    assert np.array_equal(first, fresh)
    assert np.array_equal(flow(large), fresh)


@pytest.mark.slow
def test_a_clip_is_its_pairs_one_by_one(flow: FlowBackend) -> None:
    scene = texture(SIZE[0], SIZE[1] + 16)
    speeds = [0, 1, 1, 4, 5, 5]
    clip = np.stack([scene[:, x : x + SIZE[1]] for x in speeds])
    alone = np.concatenate([flow(clip[i : i + 2]) for i in range(len(clip) - 1)])
    assert np.array_equal(flow(clip), alone)


@pytest.mark.slow
def test_torch_flow_does_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from preprocess.flow import torch_backend

    scene = texture(SIZE[0], SIZE[1] + 16)
    clip = np.stack([scene[:, x : x + SIZE[1]] for x in (0, 0, 3, 4, 4)])
    together = make_flow("torch")(clip)
    monkeypatch.setitem(torch_backend.BATCH_PIXELS, "cpu", 1)
    monkeypatch.setitem(torch_backend.CONVERGENCE_CHECK_INTERVAL, "cpu", 7)
    assert np.array_equal(make_flow("torch")(clip), together)


@pytest.mark.parametrize("name", ["opencv", "numba"])
def test_number_of_threads_does_not_change_the_flow(name: str) -> None:
    before = cv2.getNumThreads()
    results = []
    try:
        for threads in (1, 2):
            cv2.setNumThreads(threads)
            results.append(make_flow(name)(textured_pair()))
    finally:
        cv2.setNumThreads(before)
    first, second = results
    assert np.array_equal(first, second)


def test_one_frame_gives_no_flow(flow: FlowBackend) -> None:
    result = flow(np.zeros((1, 20, 30), np.uint8))
    assert result.shape == (0, 2, 20, 30)
    assert result.dtype == np.float32


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros((2, 20, 30), np.float32), r"gray uint8 frames \(N \+ 1, H, W\).*float32"),
        (np.zeros((2, 20, 30, 3), np.uint8), r"to_gray.*\(2, 20, 30, 3\)"),
        (np.zeros((20, 30), np.uint8), r"\(20, 30\)"),
        (np.zeros((0, 20, 30), np.uint8), "no frame"),
        (np.zeros((2, 2, 30), np.uint8), "at least 3 x 3"),
        ([[1]], "list"),
    ],
)
def test_wrong_frames_are_refused(flow: FlowBackend, frames: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flow(frames)


def test_frames_need_not_be_contiguous(flow: FlowBackend) -> None:
    clip = textured_pair()
    wide = np.repeat(np.repeat(clip, 2, axis=1), 2, axis=2)
    assert np.array_equal(flow(wide[:, ::2, ::2]), flow(clip))


def test_gray_is_opencvs() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 9, 3), dtype=np.uint8)
    expected = [[cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in clip] for clip in rgb]
    assert np.array_equal(to_gray(rgb), expected)
    assert to_gray(rgb[:0]).shape == (0, 3, 8, 9)
    with pytest.raises(ValueError, match="uint8 RGB"):
        to_gray(rgb[..., 0])


def test_unknown_backend_lists_the_choices() -> None:
    accepted = "auto, numba, numba-fast, torch, opencv, dis, farneback, raft"
    with pytest.raises(ValueError, match=f"'brox'; choose from {accepted}"):
        choose_backend("brox")
    with pytest.raises(ValueError, match="only torch"):
        make_flow("numba", device="cuda")


def test_versions_name_the_software_that_determines_the_values() -> None:
    import numba
    import torch
    import torchvision

    opencv = f"opencv {cv2.__version__}"
    assert {name: backend_version(name) for name in (*BACKENDS, *ALGORITHMS)} == {
        "numba": f"numba {numba.__version__} / {opencv}",
        "numba-fast": f"numba {numba.__version__} / {opencv}",
        "torch": f"torch {torch.__version__} / {opencv}",
        "opencv": opencv,
        "dis": opencv,
        "farneback": opencv,
        "raft": f"torch {torch.__version__} / torchvision {torchvision.__version__}",
    }


def test_an_opencv_without_optflow_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cv2, "optflow")
    with pytest.raises(ValueError, match="install opencv-contrib-python-headless"):
        choose_backend("opencv")


@pytest.mark.parametrize(
    "values",
    [{"tau": 0.5}, {"lambda": 0}, {"nscales": 0}, {"scale_step": 1.0}, {"median_filtering": 4}, {"alpha": 1}],
    ids=str,
)
def test_parameters_out_of_range_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(values))):
        FlowParameters.model_validate(values)


def test_parameters_take_lambda_by_both_names() -> None:
    assert FlowParameters(lambda_=0.3) == FlowParameters.model_validate({"lambda": 0.3})
    assert FlowParameters().model_dump(by_alias=True)["lambda"] == 0.15


def test_defaults_are_opencvs() -> None:
    solver = cv2.optflow.DualTVL1OpticalFlow_create()
    ours = FlowParameters()
    assert (ours.tau, ours.lambda_, ours.theta) == (solver.getTau(), solver.getLambda(), solver.getTheta())
    assert (ours.nscales, ours.warps) == (solver.getScalesNumber(), solver.getWarpingsNumber())
    assert (ours.epsilon, ours.gamma) == (solver.getEpsilon(), solver.getGamma())
    assert ours.inner_iterations == solver.getInnerIterations()
    assert ours.outer_iterations == solver.getOuterIterations()
    assert (ours.scale_step, ours.median_filtering) == (solver.getScaleStep(), solver.getMedianFiltering())


def test_pyramid_stops_above_16_pixels() -> None:
    assert level_sizes(240, 320, FlowParameters()) == [(240, 320), (192, 256), (154, 205), (123, 164), (98, 131)]
    assert level_sizes(24, 24, FlowParameters()) == [(24, 24), (19, 19)]
    assert level_sizes(3, 90, FlowParameters()) == [(3, 90)]


def test_import_brings_neither_torch_nor_numba() -> None:
    script = "import sys, preprocess.flow; sys.exit('torch' in sys.modules or 'numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
