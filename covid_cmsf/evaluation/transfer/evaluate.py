"""Transfer to one data set: features -> search on val -> retrained on train + val -> test -> result.json."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from covid_cmsf.evaluation.features.file import Features, compute_fingerprint
from covid_cmsf.evaluation.results import confusion_matrix, per_class_accuracy, write_result
from covid_cmsf.evaluation.transfer.datasets import METRICS, SUBSETS, Metric
from covid_cmsf.evaluation.transfer.logistic import (
    LabeledFeatures,
    LinearClassifier,
    NotFiniteError,
    accuracy,
    fit_classifier,
    normalize_features,
    subset_features,
)
from covid_cmsf.evaluation.transfer.search import NUM_TRIALS, Trial, search
from covid_cmsf.files import read_text

logger = logging.getLogger(__name__)
KIND = "transfer"


@dataclass(frozen=True)
class TransferResult:
    """Result of one data set; `value` is `metric` on test, in percent."""

    dataset: str
    metric: Metric
    value: float
    top1: float
    mean_per_class: float
    per_class: dict[str, float]
    confusion: list[list[int]]  # [i][j]: test images of class i taken for class j
    val_value: float  # `metric` on val, before retraining
    hyperparameters: dict[str, float]
    sizes: dict[str, int]  # {subset: number of images}
    normalize: str
    num_trials: int
    num_diverged: int  # trials
    num_skipped_trials: int  # better on val, but diverged on train + val
    seed: int
    executor: str
    protocol: str
    fingerprint: str
    differences: list[str] = field(default_factory=list)  # from the sizes of Table A2
    skipped: list[tuple[str, str, str]] = field(default_factory=list)
    features: list[dict[str, Any]] = field(default_factory=list)


def evaluate_transfer(
    features: Features,
    folder: Path,
    *,
    dataset: str,
    metric: Metric = "top1",
    normalize: str = "standardize",
    num_trials: int = NUM_TRIALS,
    seed: int = 0,
    executor: str = "local",
    device: torch.device | str = "cpu",
    replace: bool = False,
    differences: tuple[str, ...] = (),
    on_trial: Callable[[], None] = lambda: None,
) -> TransferResult:
    """Evaluate features with the subsets train, val and test; write trials.journal and result.json to `folder`.

    A finished result of the same features and options is only read; a killed search is resumed; trials of other
    features are a FileExistsError unless `replace`. `on_trial` is called after every trial.
    """
    options = {"features": features.provenance.fingerprint, "metric": metric, "normalize": normalize, "seed": seed}
    fingerprint = compute_fingerprint(options)
    finished = _load_finished(folder / "result.json", fingerprint, num_trials)
    if finished is not None:
        for _ in range(num_trials):
            on_trial()
        return finished
    subsets = subset_features(features)
    train_set, eval_set = normalize_features(normalize, subsets["train"], subsets["val"])
    trials = search(
        train_set, eval_set, metric=metric, num_trials=num_trials, seed=seed, journal=folder / "trials.journal",
        data_fingerprint=fingerprint, replace=replace, executor=executor, device=device, on_trial=on_trial,
    )  # fmt: skip
    train_set, eval_set = normalize_features(normalize, subsets["train"].concat(subsets["val"]), subsets["test"])
    best, classifier = retrain_best(trials, train_set, num_classes=len(features.videos.class_names), device=device)
    assert best.value is not None
    predictions = classifier.predict(eval_set.features)
    names = features.videos.class_names
    scores = {name: accuracy(predictions, eval_set.labels, name) for name in METRICS}
    result = TransferResult(
        dataset=dataset,
        metric=metric,
        value=scores[metric],
        top1=scores["top1"],
        mean_per_class=scores["mean_per_class"],
        per_class=per_class_accuracy(predictions == eval_set.labels, eval_set.labels, names),
        confusion=confusion_matrix(predictions, eval_set.labels, len(names)),
        val_value=best.value,
        hyperparameters=asdict(best.hyperparameters),
        sizes={subset: len(subsets[subset]) for subset in SUBSETS},
        normalize=normalize,
        num_trials=num_trials,
        num_diverged=num_trials - len(trials),
        num_skipped_trials=trials.index(best),
        seed=seed,
        executor=executor,
        protocol=features.protocol,
        fingerprint=fingerprint,
        differences=list(differences),
        skipped=list(features.skipped),
        features=[features.summary()],
    )
    write_result(folder / "result.json", KIND, result)
    return result


def retrain_best(
    trials: list[Trial], train: LabeledFeatures, *, num_classes: int, device: torch.device | str
) -> tuple[Trial, LinearClassifier]:
    """Return the best trial that does not diverge on `train`, and its classifier."""
    for trial in trials:
        try:
            return trial, fit_classifier(train, trial.hyperparameters, num_classes=num_classes, device=device)
        except NotFiniteError as error:
            logger.warning("the best hyper-parameters diverge on train + val; using the next best (%s)", error)
    raise RuntimeError("all trials diverge on train + val")


def _load_finished(path: Path, fingerprint: str, num_trials: int) -> TransferResult | None:
    """Return the result in the file if it has this fingerprint and number of trials."""
    try:
        values = json.loads(read_text(path))
        if values.pop("kind") != KIND or (values["fingerprint"], values["num_trials"]) != (fingerprint, num_trials):
            return None
        values["skipped"] = [tuple(entry) for entry in values["skipped"]]
        return TransferResult(**values)
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # no result, or an incomplete one: compute it
        return None
