"""Which entries `fused` adds, and how much of each, when nobody says it."""

import pytest

from covid_cmsf.search.index import build_index, modality_weights
from covid_cmsf.search.weights import default_weights
from tests.search.factories import windowed_features


def test_without_an_image_network_all_entries_count_the_same() -> None:
    index = build_index({name: windowed_features() for name in ("rgb", "flow")})
    assert index.weights == {} and modality_weights(index, "fused") == {"rgb": 0.5, "flow": 0.5}


def test_beside_an_image_network_the_measured_weights_are_used() -> None:
    index = build_index({name: windowed_features() for name in ("image", "motion", "rgb", "flow")})
    used = modality_weights(index, "fused")
    assert set(used) == {"image", "motion"} and used["image"] > used["motion"]
    assert modality_weights(index, "flow") == {"flow": 1.0}
    assert default_weights(["rgb", "image", "flow"]) == {"rgb": 0.0, "image": 1.0, "flow": 0.2}


@pytest.mark.parametrize("others", [["rgb", "flow"], ["rgb"], ["flow"], ["motion"], ["color"], ["motion", "color"], []])
def test_every_set_of_entries_has_weights_that_an_index_takes(others: list[str]) -> None:
    names = ["image", *others]
    assert default_weights(names)["image"] == 1.0 and set(default_weights(names)) <= set(names)
    index = build_index({name: windowed_features() for name in names})
    assert sum(modality_weights(index, "fused").values()) == pytest.approx(1)


def test_weights_that_are_given_win() -> None:
    features = {name: windowed_features() for name in ("image", "flow")}
    assert build_index(features, weights={"flow": 2.0}).weights == {"flow": 2.0}
    assert build_index(features, weights={}).weights == {}
