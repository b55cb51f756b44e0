"""The linear probe of CompRess (Koohpayegani et al. 2020), by which MSF and CMSF report ImageNet accuracy.

Features of unit length, standardized by fixed means and unbiased variances of the training part, then one linear layer:
SGD with momentum 0.9, learning rate 0.01 (a tenth of it from epochs 15 and 30 on), weight decay 1e-4, batches of 256,
40 epochs. On stored features here; `evaluate linear CHECKPOINT CLIPS --probe compress` learns from augmented images.
"""

# N images, D feature, C classes

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.recipes import RECIPES
from covid_cmsf.models.heads import Classifier

SGD_MOMENTUM = 0.9


def train_compress_probe(rows: Tensor, labels: Tensor, test_rows: Tensor, num_classes: int, *, seed: int = 0) -> Tensor:
    """(N, C) probabilities for the test rows after the last epoch. Rows (N, D) are scaled to unit length here."""
    recipe = RECIPES["compress"]
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Classifier(rows.shape[1], num_classes, normalize=True, standardize=True)
    network.standardize_by_(*feature_statistics(rows))
    optimizer = torch.optim.SGD(
        network.parameters(), lr=recipe.lr, momentum=SGD_MOMENTUM, weight_decay=recipe.weight_decay
    )
    for epoch in range(recipe.epochs):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(epoch)
        for batch in torch.randperm(len(rows), generator=generator).split(recipe.batch_size):
            loss = F.cross_entropy(network(rows[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return network(test_rows).softmax(1)


def feature_statistics(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(D,) mean and (D,) unbiased variance of the rows (N, D) after each is scaled to unit length."""
    unit = F.normalize(rows.double(), dim=1)
    if len(unit) < 2:
        raise ValueError("one row has no variance: the probe needs at least two to learn from")
    return unit.mean(0).float(), unit.var(0).float()
