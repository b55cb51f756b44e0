"""What every loss returns: a value an example, and which examples count.

Whoever trains averages them, over one process or over many: the mean over all counted examples is the same whichever
process they were in.
"""

# B batch

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ExampleLosses:
    """`values` (B,), and `counted` (B,): False for examples that have nothing to learn from, whose value is 0."""

    values: Tensor
    counted: Tensor

    def mean(self) -> Tensor:
        """Over the examples that count; 0 when there are none."""
        return self.values.sum() / self.counted.sum().clamp(min=1)


def counted_only(values: Tensor, counted: Tensor) -> ExampleLosses:
    """The losses with the values of those that do not count set to 0, and no gradient through them."""
    return ExampleLosses(torch.where(counted, values, 0), counted)
