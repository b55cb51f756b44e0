"""Random batches with banks, for tests of whole methods; and slow, obvious searches in them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.methods.bank import Bank
from covid_cmsf.methods.banks import Banks
from covid_cmsf.methods.method import Embedded

B, D = 6, 8
GUIDES = {"guide_a": 5, "guide_b": 7}


def unit(*shape: int, generator: torch.Generator) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=generator), dim=-1)


@dataclass
class World:
    """Banks, and a batch whose targets are already in them (`after=False`) or not yet."""

    banks: Banks
    batch: Embedded

    @property
    def bank(self) -> Bank:
        return self.banks.everyone


def world(
    seed: int = 0,
    *,
    pushed: int = 55,
    num_rows: int = 40,
    num_labels: int = 4,
    hidden: float = 0.0,
    labeled_rows: int = 0,
    guides: Sequence[str] = ("guide_a",),
    after: bool = False,
) -> World:
    """`pushed` examples, the last of which are the batch; a share of the labels is hidden (-1)."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"target": D, **{name: GUIDES[name] for name in guides}}
    columns = {name: unit(pushed, size, generator=generator) for name, size in sizes.items()}
    true = torch.randint(num_labels, (pushed,), generator=generator)
    known = torch.rand(pushed, generator=generator) >= hidden
    who = {
        "videos": torch.randint(30, (pushed,), generator=generator),
        "sources": torch.randint(12, (pushed,), generator=generator),
        "labels": torch.where(known, true, -1),
        "true_labels": true,
    }
    banks = Banks(num_rows, sizes, num_labeled_rows=labeled_rows)
    rows = None
    for part in [slice(0, pushed - B)] if after else [slice(0, pushed - B), slice(pushed - B, pushed)]:
        rows = banks.push_({n: c[part] for n, c in columns.items()}, **{n: w[part] for n, w in who.items()})
    batch = Embedded(
        online=unit(B, D, generator=generator),
        target=columns["target"][-B:],
        guides={name: columns[name][-B:] for name in guides},
        rows=None if after else rows,
        **{name: numbers[-B:] for name, numbers in who.items()},
    )
    return World(banks, batch)


def nearest_rows(query: Tensor, bank: Bank, column: str, rows: Sequence[int], k: int | str) -> list[int]:
    """Of these rows the k nearest, or all, one by one."""
    values = bank.rows(column).double()
    ordered = sorted(rows, key=lambda j: -float(query.double() @ values[j]))
    return ordered if k == "all" else ordered[: int(k)]


def with_gradients(batch: Embedded) -> Embedded:
    """All embeddings ask for a gradient; only the online ones may get one."""
    assert batch.target is not None and batch.guides is not None
    return replace(
        batch,
        online=batch.online.clone().requires_grad_(),
        target=batch.target.clone().requires_grad_(),
        guides={name: rows.clone().requires_grad_() for name, rows in batch.guides.items()},
    )
