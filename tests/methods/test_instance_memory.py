"""The memory of all videos, and k-means on it."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor

from covid_cmsf.methods.instance_memory import InstanceMemory, assign_to_centers, kmeans
from covid_cmsf.methods.memory_bank import MemoryBank


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(num_clusters: int, each: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit vectors near `num_clusters` random directions, and which is near which."""
    generator = drawn(seed)
    centers = F.normalize(torch.randn(num_clusters, 12, generator=generator), dim=1)
    owners = torch.arange(num_clusters).repeat_interleave(each)
    noise = 0.05 * torch.randn(len(owners), 12, generator=generator)
    return F.normalize(centers[owners] + noise, dim=1), owners


def test_assignment_equals_a_double_loop() -> None:
    points, centers = torch.randn(50, 5, generator=drawn(0)), torch.randn(7, 5, generator=drawn(1))
    clusters, distances = assign_to_centers(points, centers)
    for i, point in enumerate(points):
        slow = [float((point - center).square().sum()) for center in centers]
        assert int(clusters[i]) == int(np.argmin(slow)) and float(distances[i]) == pytest.approx(min(slow), abs=1e-4)


def test_kmeans_from_the_same_start_equals_scikit_learns() -> None:
    points = torch.randn(200, 6, generator=drawn(2))
    start = points[torch.randperm(200, generator=drawn(9))[:8]]
    ours = kmeans(points, 8, iterations=300, generator=drawn(9))
    theirs = KMeans(8, init=start.numpy(), n_init=1, algorithm="lloyd", tol=0).fit(points.numpy())
    assert ours.tolist() == theirs.labels_.tolist()


def test_kmeans_lowers_the_distances_step_by_step_and_is_the_same_for_a_seed() -> None:
    points, _ = blobs(6, 20)
    spread = []
    for iterations in (0, 1, 3, 20):
        clusters = kmeans(points, 6, iterations=iterations, generator=drawn(0))
        assert torch.equal(clusters, kmeans(points, 6, iterations=iterations, generator=drawn(0)))
        means = torch.stack([points[clusters == c].mean(0) for c in range(6)])
        spread.append(float((points - means[clusters]).square().sum()))
    assert all(later <= earlier + 1e-5 for earlier, later in pairwise(spread))


def test_no_cluster_stays_empty() -> None:
    points = torch.cat([torch.zeros(30, 3), torch.ones(1, 3), 2 * torch.ones(1, 3)])
    assert kmeans(points, 3, iterations=5, generator=drawn(0)).unique().numel() == 3


@pytest.mark.parametrize("number", [0, 5])
def test_impossible_numbers_of_clusters_are_errors(number: int) -> None:
    with pytest.raises(ValueError, match="of 4 embeddings"):
        kmeans(torch.randn(4, 3), number, iterations=1, generator=drawn(0))


def test_memory_recalls_the_last_visit_and_at_the_first_the_target_itself() -> None:
    memory, first, second = InstanceMemory(5, 4), torch.randn(3, 4), torch.randn(3, 4)
    videos = torch.tensor([4, 0, 2])
    assert torch.equal(memory.lookup(videos, first), first)
    memory.update_(videos, first)
    assert torch.equal(memory.lookup(videos, second), first)
    memory.update_(videos[:1], second[:1])
    assert torch.equal(memory.lookup(torch.tensor([4, 2, 1]), second), torch.stack([second[0], first[2], second[2]]))


def test_clusters_of_what_was_seen_and_minus_one_for_the_rest() -> None:
    points, owners = blobs(3, 10)
    memory = InstanceMemory(32, 12)
    memory.update_(torch.arange(30), points)
    best = None
    for seed in range(5):  # a bad start may join two blobs
        memory.cluster_(3, iterations=20, generator=drawn(seed))
        best = best or all(memory.clusters[:30][owners == c].unique().numel() == 1 for c in range(3))
        assert memory.clusters[30:].tolist() == [-1, -1] and int(memory.clusters[:30].min()) == 0
    assert best
    memory.cluster_(1000, iterations=2, generator=drawn(0))  # more than there are: one each
    assert memory.clusters[:30].unique().numel() == 30


def test_rows_of_the_bank_take_the_labels_their_videos_have_now() -> None:
    bank = MemoryBank(6, {"target": 2})
    videos = torch.tensor([3, 1, 2, 0])
    bank.push_({"target": torch.randn(4, 2)}, videos=videos, sources=videos, labels=torch.zeros(4, dtype=torch.int64))
    bank.relabel_(torch.tensor([10, 11, 12, 13]))
    assert bank.ids("labels").tolist() == [13, 11, 12, 10] and bank.labels[4:].tolist() == [-1, -1]
