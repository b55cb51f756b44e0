"""Flow as bytes."""

import numpy as np
import pytest

from covid_cmsf.clips.flow_codec import decode_flow, encode_flow, stack_components, unstack_components


def test_codes_follow_the_published_rule() -> None:
    flow = np.array([-25, -20, -0.2, 0, 0.2, 19.99, 20, 1e9], np.float32)
    slow = [round((min(max(float(f), -20), 20) + 20) * 255 / 40) for f in flow]
    assert encode_flow(flow, 20).tolist() == slow
    assert encode_flow(np.zeros(1, np.float32), 20)[0] == 128


@pytest.mark.parametrize("bound", [5.0, 20.0])
def test_decoding_is_within_half_a_step(bound: float) -> None:
    flow = np.random.default_rng(0).uniform(-bound, bound, (3, 2, 8, 8)).astype(np.float32)
    assert np.abs(decode_flow(encode_flow(flow, bound), bound) - flow).max() <= bound / 255 + 1e-5


def test_flow_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        encode_flow(np.array([np.nan], np.float32), 20)


def test_x_is_above_y() -> None:
    quantized = np.arange(2 * 2 * 3 * 4, dtype=np.uint8).reshape(2, 2, 3, 4)
    frames = stack_components(quantized)
    assert frames.shape == (2, 6, 4)
    assert (frames[1, :3] == quantized[1, 0]).all() and (frames[1, 3:] == quantized[1, 1]).all()
    assert (unstack_components(frames) == quantized).all()
