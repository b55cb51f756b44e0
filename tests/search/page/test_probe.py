"""The probe of the page, in Python: slow, and close to what it minimizes."""

import base64
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.search.page.data import probe_values
from tests.search.test_clusters import grouped_index

STRENGTH = 10
PROBE_SCRIPT = """async ([videos, classes]) => {
  const labels = new Map(videos.map((video, i) => [video, String(classes[i])]));
  return (await Page.probe.suggest(labels)).rows; }"""


def probe_vectors(values: dict[str, Any]) -> torch.Tensor:
    """The unit vectors (N, P) that the page decodes."""
    whole = np.frombuffer(base64.b64decode(values["bytes"]), np.int8).reshape(-1, values["size"])
    return F.normalize(torch.tensor(whole, dtype=torch.float64), dim=1)


def fit(rows: torch.Tensor, classes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Minimize by L-BFGS, to convergence, what the page minimizes by Nesterov's method."""
    target = torch.tensor(classes)
    count = int(target.max()) + 1
    weights = torch.zeros(count, rows.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(count, dtype=torch.float64, requires_grad=True)
    share = torch.tensor([1 / (count * classes.count(one)) for one in classes], dtype=torch.float64)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=2000, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        errors = F.cross_entropy(rows @ weights.T + bias, target, reduction="none")
        value = (share * errors).sum() + weights.square().sum() / (2 * STRENGTH * len(classes))
        value.backward()
        return value

    optimizer.step(loss)
    return weights.detach(), bias.detach()


def slow_suggestions(values: dict[str, Any], classes: list[int], videos: list[int]) -> list[tuple[int, int, float]]:
    """(video, class, probability) of every video without a label."""
    rows = probe_vectors(values)
    weights, bias = fit(rows[videos], classes)
    chances = torch.softmax(rows @ weights.T + bias, dim=1)
    return [
        (video, int(chances[video].argmax()), float(chances[video].max()))
        for video in range(len(rows))
        if video not in videos
    ]


def slow_calibration(values: dict[str, Any], classes: list[int], videos: list[int]) -> tuple[float, int]:
    """The temperature that makes labels likeliest that are left out one by one, and how many of them are right."""
    rows, count = probe_vectors(values)[videos], max(classes) + 1
    logits = []
    for left_out in range(len(videos)):
        others = [number for number in range(len(videos)) if number != left_out]
        weights, bias = fit(rows[others], [classes[number] for number in others])
        logits.append(rows[left_out] @ weights.T + bias)
    target, stacked = torch.tensor(classes), torch.stack(logits)
    share = torch.tensor([1 / classes.count(one) for one in classes], dtype=torch.float64)
    assert stacked.shape == (len(videos), count)
    temperatures = [2 ** ((i - 8) / 4) for i in range(25)]
    losses = [float((share * F.cross_entropy(stacked / one, target, reduction="none")).sum()) for one in temperatures]
    return temperatures[losses.index(min(losses))], int((stacked.argmax(1) == target).sum())


def test_few_labels_are_enough_for_known_groups() -> None:
    values = probe_values(grouped_index())
    labeled = [0, 1, 2, 3, 4, 5, 6, 7]
    suggested = slow_suggestions(values, [video % 4 for video in labeled], labeled)
    assert all(label == video % 4 for video, label, _ in suggested if video != 40)


def test_bytes_keep_the_similarities() -> None:
    index = grouped_index()
    vectors = index.windows["rgb"].vectors[::2].double()
    centered = F.normalize(vectors - vectors.mean(0), dim=1)
    kept = probe_vectors(probe_values(index))
    assert kept.shape == (41, 16)
    assert (kept @ kept.T - centered @ centered.T).abs().max() == pytest.approx(0, abs=0.02)
