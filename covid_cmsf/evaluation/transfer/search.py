"""The search: which setting does best on val?"""

from collections.abc import Callable
from pathlib import Path

import torch

from covid_cmsf.evaluation.identity import fingerprint
from covid_cmsf.evaluation.transfer.accuracy import accuracy
from covid_cmsf.evaluation.transfer.classifier import NotFiniteError, Setting, fit
from covid_cmsf.evaluation.transfer.datasets import Metric
from covid_cmsf.evaluation.transfer.ray_executor import check_ray, run_with_ray
from covid_cmsf.evaluation.transfer.rows import LabeledRows
from covid_cmsf.evaluation.transfer.study import Study, Trial, ranked, space_values

NUM_TRIALS = 200
EXECUTORS = ("local", "ray")


def search(
    train: LabeledRows,
    val: LabeledRows,
    *,
    metric: Metric = "top1",
    num_trials: int = NUM_TRIALS,
    seed: int = 0,
    journal: Path | None = None,
    belongs_to: str = "",
    replace: bool = False,
    executor: str = "local",
    device: torch.device | str = "cpu",
    on_trial: Callable[[], None] = lambda: None,
) -> list[Trial]:
    """Trials, best on val first (those that diverged are left out); rows are taken as they are.

    With a `journal` a killed search continues, to the same trials if the executor is local. `belongs_to` says which
    rows these are (a fingerprint): a journal of other rows is a FileExistsError unless `replace`.
    """
    if num_trials < 1:
        raise ValueError(f"{num_trials} trials: one at least is needed")
    check_executor(executor)
    num_classes = int(max(train.labels.max(), val.labels.max())) + 1
    identity = fingerprint({"belongs_to": belongs_to, "metric": metric, "seed": seed, "space": space_values()})
    study = Study(journal, identity, seed=seed, replace=replace)
    for _ in study.trials(num_trials):
        on_trial()
    missing = num_trials - len(study.trials(num_trials))
    if executor == "ray" and missing:
        run_with_ray(
            val_accuracy, study, missing, seed=seed, on_trial=on_trial,
            train=train, val=val, metric=metric, num_classes=num_classes, device=str(device),
        )  # fmt: skip
    elif missing:
        train = LabeledRows(train.rows.to(device), train.labels.to(device))
        for _ in range(missing):
            ticket, setting = study.ask()
            value = val_accuracy(setting, train, val, metric=metric, num_classes=num_classes, device=device)
            study.tell(ticket, value)
            on_trial()
    done = study.trials(num_trials)
    if len(done) < num_trials:
        raise RuntimeError(f"the search stopped after {len(done)} of {num_trials} trials; the same call continues")
    best = ranked(done)
    if not best:
        raise RuntimeError(f"none of {num_trials} trials had a finite loss; are the features absurdly large?")
    return best


def check_executor(name: str) -> None:
    """ValueError unless there is such an executor and it can be used."""
    if name not in EXECUTORS:
        raise ValueError(f"unknown executor {name!r}; choose from {', '.join(EXECUTORS)}")
    if name == "ray":
        check_ray()


def val_accuracy(
    setting: Setting,
    train: LabeledRows,
    val: LabeledRows,
    *,
    metric: Metric,
    num_classes: int,
    device: torch.device | str,
) -> float | None:
    """Percent on val after training with this setting; None when it diverges."""
    try:
        classifier = fit(train, setting, num_classes=num_classes, device=device)
    except NotFiniteError:
        return None
    return accuracy(classifier.answers(val.rows), val.labels, metric)
