"""One data set: features -> search on val -> retrained on train + val -> test -> result.json."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from covid_cmsf.evaluation.features import Features
from covid_cmsf.evaluation.identity import fingerprint
from covid_cmsf.evaluation.results import write_result
from covid_cmsf.evaluation.transfer.accuracy import accuracy
from covid_cmsf.evaluation.transfer.classifier import Classifier, NotFiniteError, fit
from covid_cmsf.evaluation.transfer.datasets import METRICS, PARTS, Metric
from covid_cmsf.evaluation.transfer.rows import LabeledRows, normalized, parts_of
from covid_cmsf.evaluation.transfer.search import NUM_TRIALS, search
from covid_cmsf.evaluation.transfer.study import Trial

logger = logging.getLogger(__name__)
KIND = "transfer"


@dataclass(frozen=True)
class TransferResult:
    """`value` is the result: `metric` on test, in percent. Everything else says how it came about."""

    dataset: str
    metric: Metric
    value: float
    top1: float
    mean_per_class: float
    val_value: float  # `metric` on val, before retraining
    setting: dict[str, float]
    sizes: dict[str, int]  # rows of each part
    normalize: str
    num_trials: int
    num_diverged: int  # of the trials
    num_passed_over: int  # better on val, but diverged on train + val
    seed: int
    executor: str
    protocol: str
    identity: str
    differences: list[str] = field(default_factory=list)  # from the sizes of Table A2
    set_aside: list[tuple[str, str, str]] = field(default_factory=list)
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
    """Any features with the parts train, val and test. `folder` gets trials.journal and result.json.

    A finished result of the same features and options is only read; a killed search continues; trials of other
    features are a FileExistsError unless `replace`.
    """
    about = {"features": features.about.fingerprint, "metric": metric, "normalize": normalize, "seed": seed}
    identity = fingerprint(about)
    there = _finished(folder / "result.json", identity, num_trials)
    if there is not None:
        for _ in range(num_trials):
            on_trial()
        return there
    parts = parts_of(features)
    known, asked = normalized(normalize, parts["train"], parts["val"])
    trials = search(
        known, asked, metric=metric, num_trials=num_trials, seed=seed, journal=folder / "trials.journal",
        belongs_to=identity, replace=replace, executor=executor, device=device, on_trial=on_trial,
    )  # fmt: skip
    known, asked = normalized(normalize, parts["train"].and_also(parts["val"]), parts["test"])
    best, classifier = retrained(trials, known, num_classes=len(features.videos.class_names), device=device)
    assert best.value is not None
    answers = classifier.answers(asked.rows)
    scores = {name: accuracy(answers, asked.labels, name) for name in METRICS}
    result = TransferResult(
        dataset=dataset,
        metric=metric,
        value=scores[metric],
        top1=scores["top1"],
        mean_per_class=scores["mean_per_class"],
        val_value=best.value,
        setting=asdict(best.setting),
        sizes={part: len(parts[part]) for part in PARTS},
        normalize=normalize,
        num_trials=num_trials,
        num_diverged=num_trials - len(trials),
        num_passed_over=trials.index(best),
        seed=seed,
        executor=executor,
        protocol=features.protocol,
        identity=identity,
        differences=list(differences),
        set_aside=list(features.set_aside),
        features=[features.summary()],
    )
    write_result(folder / "result.json", KIND, result)
    return result


def retrained(
    trials: list[Trial], learned: LabeledRows, *, num_classes: int, device: torch.device | str
) -> tuple[Trial, Classifier]:
    """The best trial and a classifier that learned these rows with its setting; one that diverges is passed over."""
    for trial in trials:
        try:
            return trial, fit(learned, trial.setting, num_classes=num_classes, device=device)
        except NotFiniteError as error:
            logger.warning("the best setting diverges on train + val; the next best is taken (%s)", error)
    raise RuntimeError("every setting that was tried diverges on train + val")


def _finished(path: Path, identity: str, num_trials: int) -> TransferResult | None:
    """The result in the file if it is the one that was asked for."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("kind") != KIND or (values["identity"], values["num_trials"]) != (identity, num_trials):
            return None
        values["set_aside"] = [tuple(entry) for entry in values["set_aside"]]
        return TransferResult(**values)
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # none, or not one of ours: it is made anew
        return None
