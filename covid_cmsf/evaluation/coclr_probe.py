"""The linear probe of Han et al. (2020), `feature_linear_probe.py`, as their README runs it.

Batch norm and a linear layer on stored features; SGD with momentum 0.9, learning rate 1.0 (a tenth of it from epochs 60
and 80 on), weight decay 1e-3, batches of 1024, 100 epochs. Every 5 epochs they look at the test set, and the largest
accuracy that they see is what they print. We give that number under a name that says so, and the last epoch's.
"""

# N videos, D feature, C classes

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covid_cmsf.models import Classifier

LEARNING_RATE, SGD_MOMENTUM, WEIGHT_DECAY = 1.0, 0.9, 1e-3
BATCH_SIZE, NUM_EPOCHS, DROPS, LOOK_EVERY = 1024, 100, (60, 80), 5


@dataclass(frozen=True)
class CoclrProbe:
    """`probabilities` (N, C) are the last epoch's answers for the test rows."""

    probabilities: Tensor
    best_on_test: float
    best_epoch: int


def train_coclr_probe(
    rows: Tensor, labels: Tensor, test_rows: Tensor, test_labels: Tensor, num_classes: int, *, seed: int = 0
) -> CoclrProbe:
    """Learns on (N, D) rows as they are: no centering, no scaling but the batch norm's."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Classifier(rows.shape[1], num_classes, batch_norm=True)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=LEARNING_RATE, momentum=SGD_MOMENTUM, weight_decay=WEIGHT_DECAY
    )
    best, best_epoch = 0.0, 0
    for epoch in range(NUM_EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * 0.1 ** sum(epoch >= drop for drop in DROPS)
        for batch in epoch_batches(len(rows), generator):
            loss = F.cross_entropy(network.train()(rows[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % LOOK_EVERY == 0:
            right = answers(network, test_rows).argmax(1) == test_labels
            accuracy = 100 * float(right.double().mean())
            if accuracy >= best:
                best, best_epoch = accuracy, epoch
    return CoclrProbe(answers(network, test_rows), best, best_epoch)


def epoch_batches(num_rows: int, generator: torch.Generator) -> list[Tensor]:
    """All rows in a random order, in batches; a last row by itself joins the batch before, for batch norm's sake."""
    batches = list(torch.randperm(num_rows, generator=generator).split(BATCH_SIZE))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


@torch.no_grad()
def answers(network: nn.Module, rows: Tensor) -> Tensor:
    """(N, D) -> (N, C) probabilities, with the batch norm's running statistics."""
    return network.eval()(rows).softmax(1)
