"""Flow as bytes."""

import numpy as np
import pytest

from covid_cmsf.clips.flow_codec import (
    COCLR_LEVELS,
    FlowLevels,
    motion_bound,
    size_bound,
    stack_components,
    unstack_components,
    without_noise,
)


def test_levels_of_other_projects_follow_the_published_rule() -> None:
    flow = np.array([-25, -20, -0.2, 0, 0.2, 19.99, 20, 1e9], np.float32)
    slow = [round((min(max(float(f), -20), 20) + 20) * 255 / 40) for f in flow]
    assert COCLR_LEVELS.encode(flow).tolist() == slow
    assert COCLR_LEVELS.encode(np.zeros(1, np.float32))[0] == 128
    assert COCLR_LEVELS.decode(np.array([128], np.uint8))[0] == pytest.approx(20 / 255, abs=1e-5)


@pytest.mark.parametrize("bound", [0.1, 1 / 3, 5.0, 13.3333, 20.0])
def test_no_motion_has_a_level_of_its_own(bound: float) -> None:
    levels = FlowLevels(bound)
    assert levels.encode(np.array([-1e9, -bound, 0, -0.0, bound, 1e9], np.float32)).tolist() == [
        1,
        1,
        128,
        128,
        255,
        255,
    ]
    assert levels.decode(np.array([128], np.uint8))[0] == 0.0
    codes = np.arange(1, 256, dtype=np.uint8)
    flow = levels.decode(codes)
    assert np.allclose(flow, -flow[::-1], atol=1e-6 * bound) and (levels.encode(flow) == codes).all()


@pytest.mark.parametrize("levels", [FlowLevels(5.0), FlowLevels(20.0), FlowLevels(5.0, 256)])
def test_decoding_is_within_half_a_step(levels: FlowLevels) -> None:
    flow = np.random.default_rng(0).uniform(-levels.bound, levels.bound, (50, 2, 8, 8)).astype(np.float32)
    error = levels.decode(levels.encode(flow)) - flow
    assert np.abs(error).max() <= levels.step / 2 + 1e-5
    assert np.hypot(error[:, 0], error[:, 1]).mean() == pytest.approx(levels.mean_error, rel=0.03)


def test_flow_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        FlowLevels(20.0).encode(np.array([np.nan], np.float32))


def test_the_bound_follows_the_short_edge_up_to_that_of_the_published_data() -> None:
    sizes = [(320, 240), (60, 80), (214, 160), (1920, 1080)]
    assert [size_bound(*size) for size in sizes] == [20.0, 5.0, 13.3333, 20.0]


def test_the_bound_by_motion_clips_one_component_in_a_thousand() -> None:
    flow = np.random.default_rng(0).normal(0, 0.5, (4, 2, 60, 80)).astype(np.float32)
    bound = motion_bound(flow, 80, 60)
    assert np.mean(np.abs(flow) > bound) == pytest.approx(0.001, rel=0.2)
    assert motion_bound(np.zeros((4, 2, 60, 80), np.float32), 80, 60) == motion_bound(flow[:0], 80, 60) == 0.25


def test_motion_of_up_to_a_level_is_not_drawn() -> None:
    for levels, still in ((FlowLevels(5.0), [127, 128, 129]), (COCLR_LEVELS, [127, 128])):
        codes = np.array([126, 127, 128, 129, 130], np.uint8)
        assert codes[without_noise(levels.decode(codes), levels) == 0].tolist() == still


def test_x_is_above_y() -> None:
    quantized = np.arange(2 * 2 * 3 * 4, dtype=np.uint8).reshape(2, 2, 3, 4)
    frames = stack_components(quantized)
    assert frames.shape == (2, 6, 4)
    assert (frames[1, :3] == quantized[1, 0]).all() and (frames[1, 3:] == quantized[1, 1]).all()
    assert (unstack_components(frames) == quantized).all()
