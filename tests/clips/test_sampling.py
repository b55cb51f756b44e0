"""Frame numbers of clips."""

from collections import Counter

import numpy as np
import pytest

from covid_cmsf.clips.sampling import pad_clip, random_clip, sliding_windows, spread_windows, two_clips


def test_every_start_that_fits_is_drawn_equally_often() -> None:
    rng = np.random.default_rng(0)
    starts = Counter(random_clip(12, rng, length=4, stride=2)[0] for _ in range(6000))
    assert sorted(starts) == list(range(6)), "the last legal start too"
    assert max(starts.values()) < 1.2 * min(starts.values())


def test_a_clip_has_the_asked_length_and_stride() -> None:
    clip = random_clip(100, np.random.default_rng(1), length=8, stride=3)
    assert len(clip) == 8 and set(np.diff(clip)) == {3} and clip[0] >= 0 and clip[-1] < 100


def test_two_clips_are_independent() -> None:
    rng = np.random.default_rng(0)
    pairs = [tuple(clip[0] for clip in two_clips(20, rng, length=4)) for _ in range(4000)]
    first, second = np.array(pairs, float).T
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05 and (first != second).mean() > 0.9


def test_short_videos_are_padded_in_front_as_coclr_does_or_looped() -> None:
    assert pad_clip(20, length=32) == [0] * 12 + list(range(20))
    assert pad_clip(5, length=4, stride=2) == [0, 0, 2, 4]
    assert pad_clip(3, length=7, pad_mode="loop") == [0, 1, 2, 0, 1, 2, 0]
    assert random_clip(1, np.random.default_rng(0), length=3) == [0, 0, 0]
    with pytest.raises(ValueError, match="choose from pad, loop"):
        pad_clip(3, length=7, pad_mode="mirror")  # type: ignore[arg-type]


@pytest.mark.parametrize(("num_frames", "length", "stride"), [(100, 32, 1), (32, 32, 1), (61, 8, 2), (9, 16, 1)])
def test_sliding_windows_equal_a_slow_twin(num_frames: int, length: int, stride: int) -> None:
    slow, start = [], 0
    while start + (length - 1) * stride < num_frames:
        slow.append([start + stride * i for i in range(length)])
        start += length * stride // 2 - 1
    found = sliding_windows(num_frames, length=length, stride=stride)
    assert found == (slow or [pad_clip(num_frames, length=length, stride=stride)])


def test_spread_windows_reach_from_the_first_frame_to_the_last() -> None:
    windows = spread_windows(100, length=10, num_windows=4)
    assert [window[0] for window in windows] == [0, 30, 60, 90]
    assert spread_windows(100, length=10, num_windows=1)[0][0] == 45
    assert len(spread_windows(5, length=10, num_windows=3)) == 1


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        random_clip(0, np.random.default_rng(0), length=3)
    with pytest.raises(ValueError, match="step between windows is 0"):
        sliding_windows(10, length=3, step=0)
    with pytest.raises(ValueError, match="num_windows is 0"):
        spread_windows(10, length=3, num_windows=0)
