"""Label-constrained search on the pretended GPU: the neighbors of the CPU, without a loop over classes."""

import pytest
import torch
from torch import Tensor

from covid_cmsf.methods.neighbors import nearest_same_label
from tests.pretended_gpu import pretended_gpu

BANK, QUERIES, K = 2000, 64, 5


def drawn(num_classes: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Queries, some of them without a label, a bank, and the labels of both; one entry in ten is forbidden."""
    generator = torch.Generator().manual_seed(num_classes)
    queries, bank = (
        torch.nn.functional.normalize(torch.randn(count, 16, generator=generator), dim=1) for count in (QUERIES, BANK)
    )
    labels, bank_labels = (torch.randint(num_classes, (count,), generator=generator) for count in (QUERIES, BANK))
    labels[::16] = -1
    forbidden = torch.rand(QUERIES, BANK, generator=generator) < 0.1
    return queries, bank, {"labels": labels, "bank_labels": bank_labels, "forbidden": forbidden}


@pytest.mark.parametrize("with_forbidden", [False, True])
def test_labels_are_compared_in_as_many_launches_for_4_classes_as_for_400(with_forbidden: bool) -> None:
    launches = []
    for num_classes in (4, 400):
        queries, bank, options = drawn(num_classes)
        if not with_forbidden:
            del options["forbidden"]
        on_cpu = nearest_same_label(queries, bank, K, **options).indices
        with pretended_gpu() as gpu:
            there = {name: value.to("cuda") for name, value in options.items()}
            points = queries.to("cuda"), bank.to("cuda")
            gpu.reset()
            found = nearest_same_label(*points, K, **there)
            launches.append(gpu.launches)
            assert gpu.lines == []
            assert torch.equal(found.indices.cpu(), on_cpu) and (on_cpu[::16] == -1).all()
        own = [index for row, label in zip(on_cpu, options["labels"], strict=True) for index in row if label >= 0]
        assert len(own) > 200 and (on_cpu >= 0).sum() > 200, "there are neighbors"
    assert launches[0] == launches[1] > 0
