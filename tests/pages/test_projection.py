"""Maps: principal components against a singular value decomposition, UMAP by its interface."""

import importlib.machinery
import sys
import types

import numpy as np
import pytest
import torch

from covid_cmsf.pages import projection
from covid_cmsf.pages.projection import has_umap, principal_components, umap_projection


@pytest.mark.parametrize("shape", [(40, 7), (5, 12), (9, 2)])
def test_principal_components_are_those_of_a_decomposition(shape: tuple[int, int]) -> None:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    places, shares = principal_components(rows)
    centered = rows.numpy().astype(np.float64) - rows.numpy().mean(0)
    _, values, directions = np.linalg.svd(centered, full_matrices=False)
    for axis in range(2):
        direction = directions[axis] * np.sign(directions[axis][np.abs(directions[axis]).argmax()])
        assert places[:, axis].numpy() == pytest.approx(centered @ direction, abs=1e-4)
        assert shares[axis] == pytest.approx(values[axis] ** 2 / (values**2).sum(), abs=1e-6)


def test_features_of_one_value_have_a_map_too() -> None:
    places, shares = principal_components(torch.tensor([[1.0], [2.0], [4.0]]))
    assert places.shape == (3, 2) and shares == (1.0, 0.0) and not places[:, 1].any()


def test_umap_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    umap_options = {}

    class Umap:
        def __init__(self, **options: object) -> None:
            umap_options.update(options)

        def fit_transform(self, rows: np.ndarray) -> np.ndarray:
            return rows[:, :2]

    module = types.ModuleType("umap")
    module.UMAP = Umap  # type: ignore[attr-defined]
    module.__spec__ = importlib.machinery.ModuleSpec("umap", None)
    monkeypatch.setitem(sys.modules, "umap", module)
    rows = torch.randn(10, 4)
    assert has_umap() and torch.equal(umap_projection(rows, seed=5), rows[:, :2])
    assert umap_options["metric"] == "cosine" and umap_options["random_state"] == 5 and umap_options["n_neighbors"] == 9


def test_without_umap_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "find_spec", lambda name: None)
    assert not has_umap()
