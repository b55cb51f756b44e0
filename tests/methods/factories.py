"""Random batches with banks, for tests of whole methods; and slow, obvious searches in them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.methods.base import EmbeddedBatch
from covid_cmsf.methods.constraints import (
    Constraint,
    GuideConstraint,
    LabelConstraint,
    SelfConstraint,
    Unconstrained,
)
from covid_cmsf.methods.mean_shift import MeanShift, MeanShiftLoss, SemiSupervisedMeanShift
from covid_cmsf.methods.memory_bank import MemoryBank, MemoryBanks

B, D = 6, 8
GUIDES = {"guide_a": 5, "guide_b": 7}


def unit(*shape: int, generator: torch.Generator) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=generator), dim=-1)


@dataclass
class Scenario:
    """Banks, and a batch whose targets are already in them (`after=False`) or not yet."""

    banks: MemoryBanks
    batch: EmbeddedBatch

    @property
    def bank(self) -> MemoryBank:
        return self.banks.main


def make_scenario(
    seed: int = 0,
    *,
    pushed: int = 55,
    bank_size: int = 40,
    num_labels: int = 4,
    hidden: float = 0.0,
    labeled_size: int = 0,
    guides: Sequence[str] = ("guide_a",),
    after: bool = False,
) -> Scenario:
    """`pushed` examples, the last of which are the batch; a share of the labels is hidden (-1)."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"target": D, **{name: GUIDES[name] for name in guides}}
    columns = {name: unit(pushed, size, generator=generator) for name, size in sizes.items()}
    true = torch.randint(num_labels, (pushed,), generator=generator)
    known = torch.rand(pushed, generator=generator) >= hidden
    ids = {
        "videos": torch.randint(30, (pushed,), generator=generator),
        "sources": torch.randint(12, (pushed,), generator=generator),
        "labels": torch.where(known, true, -1),
        "true_labels": true,
    }
    banks = MemoryBanks(bank_size, sizes, labeled_size=labeled_size)
    indices = None
    for chunk in [slice(0, pushed - B)] if after else [slice(0, pushed - B), slice(pushed - B, pushed)]:
        indices = banks.push_({n: c[chunk] for n, c in columns.items()}, **{n: i[chunk] for n, i in ids.items()})
    batch = EmbeddedBatch(
        online=unit(B, D, generator=generator),
        target=columns["target"][-B:],
        guides={name: columns[name][-B:] for name in guides},
        bank_indices=None if after else indices,
        **{name: numbers[-B:] for name, numbers in ids.items()},
    )
    return Scenario(banks, batch)


def nearest_indices(query: Tensor, bank: MemoryBank, column: str, indices: Sequence[int], k: int | str) -> list[int]:
    """Of these rows the k nearest, or all, one by one."""
    values = bank.embeddings(column).double()
    ordered = sorted(indices, key=lambda j: -float(query.double() @ values[j]))
    return ordered if k == "all" else ordered[: int(k)]


def with_gradients(batch: EmbeddedBatch) -> EmbeddedBatch:
    """All embeddings ask for a gradient; only the online ones may get one."""
    assert batch.target is not None and batch.guides is not None
    return replace(
        batch,
        online=batch.online.clone().requires_grad_(),
        target=batch.target.clone().requires_grad_(),
        guides={name: indices.clone().requires_grad_() for name, indices in batch.guides.items()},
    )


@dataclass(frozen=True)
class ShiftSpec:
    """A mean-shift method by the name of its constraint, for slow loops and for the method itself."""

    k: int | Literal["all"]
    constraint: str = "none"
    num_candidates: int = 10
    combine: Literal["union", "intersection"] = "union"
    include_target: bool = True
    include_siblings: bool = True

    def build(self, **options: Any) -> MeanShift:
        constraints: dict[str, Constraint] = {
            "none": Unconstrained(),
            "self": SelfConstraint(),
            "label": LabelConstraint(),
            "two_bank": LabelConstraint(),
            "guide": GuideConstraint(n=self.num_candidates, combine=self.combine),
        }
        loss = MeanShiftLoss(
            self.k,
            constraints[self.constraint],
            include_target=self.include_target,
            include_siblings=self.include_siblings,
        )
        return SemiSupervisedMeanShift(loss) if self.constraint == "two_bank" else MeanShift(loss, **options)
