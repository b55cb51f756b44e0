"""Who gets which clip and which augmentation."""

from collections import Counter

import numpy as np
import pytest

from covid_cmsf.views.presets import PAIRINGS, ViewSpec, sample_view_specs


def test_weak_strong_means_a_weak_target_and_a_strong_online_view() -> None:
    assert sample_view_specs("weak_strong", np.random.default_rng(0)) == (ViewSpec(0, "strong"), ViewSpec(1, "weak"))
    assert sample_view_specs("strong_strong", np.random.default_rng(0), num_clips=1)[1] == ViewSpec(0, "strong")


def test_coclrs_mixture_has_the_measured_frequencies() -> None:
    rng = np.random.default_rng(0)
    specs = [sample_view_specs("coclr", rng) for _ in range(20000)]
    counts = Counter(
        (online.clip != target.clip, online.preset == "coclr", target.preset == "coclr") for online, target in specs
    )
    shares = {key: count / len(specs) for key, count in counts.items()}
    expected = {
        (False, True, False): 0.25,
        (False, False, True): 0.25,
        (True, False, False): 0.245,
        (True, True, False): 0.105,
        (True, False, True): 0.105,
        (True, True, True): 0.045,
    }
    assert shares == pytest.approx(expected, abs=0.015)


def test_unknown_pairings_are_named() -> None:
    with pytest.raises(ValueError, match=f"choose from {', '.join(PAIRINGS)}"):
        sample_view_specs("strong_weakish", np.random.default_rng(0))
