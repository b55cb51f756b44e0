"""Search of hyper-parameters on val, with Optuna. Trials are kept in a journal file, so a killed search is resumed.

The executor `ray` runs many trials at once with Ray Tune, as in the paper. Trials then run while others are drawn, so
which hyper-parameters are tried depends on timing. Ray is an extra.
"""

import importlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from covid_cmsf.evaluation.features.file import compute_fingerprint
from covid_cmsf.evaluation.transfer.datasets import Metric
from covid_cmsf.evaluation.transfer.logistic import (
    Hyperparameters,
    LabeledFeatures,
    NotFiniteError,
    accuracy,
    fit_classifier,
)

logger = logging.getLogger(__name__)
STUDY_NAME = "transfer"
# The paper's space, log-uniform; its iterations start at 0, which has no logarithm.
SEARCH_SPACE: dict[str, Any] = {
    "iterations": IntDistribution(1, 1000, log=True),
    "lr": FloatDistribution(1e-6, 1.0, log=True),
    "weight_decay": FloatDistribution(1e-9, 1.0, log=True),
}
NOT_FINITE = -1.0  # value of a diverged trial, below any accuracy
RAY_METRIC = "val_accuracy"
NUM_TRIALS = 200
EXECUTORS = ("local", "ray")


@dataclass(frozen=True)
class Trial:
    """`value`: percent on val; None if the training diverged."""

    hyperparameters: Hyperparameters
    value: float | None


class Study:
    """Optuna study of one search; without a journal file it is in memory only."""

    def __init__(self, journal: Path | None, fingerprint: str, *, seed: int, replace: bool = False) -> None:
        """Open the study; FileExistsError if the journal has trials of another `fingerprint`, unless `replace`."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.storage = None if journal is None else _open_storage(journal)
        self._seed = seed
        self.optuna = self._open()
        attributes = self.optuna.user_attrs
        stored = attributes.get("fingerprint", attributes.get("identity", fingerprint))  # identity: version 0.1.0
        if stored != fingerprint:
            assert journal is not None and self.storage is not None
            if not replace:
                raise FileExistsError(f"{journal} holds trials of other features or options; --force replaces it")
            optuna.delete_study(study_name=STUDY_NAME, storage=self.storage)
            self.optuna = self._open()
        self.optuna.set_user_attr("fingerprint", fingerprint)
        for unfinished in self.optuna.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            self.optuna.tell(unfinished.number, state=TrialState.FAIL)  # left by a kill

    def _open(self) -> optuna.Study:
        return optuna.create_study(
            storage=self.storage, study_name=STUDY_NAME, direction="maximize", load_if_exists=True
        )

    def trials(self, limit: int | None = None) -> list[Trial]:
        """Return the first `limit` finished trials, in order."""
        finished = self.optuna.get_trials(deepcopy=False, states=[TrialState.COMPLETE])[:limit]
        return [
            Trial(Hyperparameters(**one.params), None if one.value == NOT_FINITE else one.value) for one in finished
        ]

    def ask(self) -> tuple[Any, Hyperparameters]:
        """Return an Optuna trial and its hyper-parameters: a function of seed and finished trials only."""
        done = len(self.optuna.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))
        self.optuna.sampler = make_sampler(self._seed, done)
        optuna_trial = self.optuna.ask(fixed_distributions=SEARCH_SPACE)
        return optuna_trial, Hyperparameters(**optuna_trial.params)

    def tell(self, optuna_trial: Any, value: float | None) -> None:
        """Store the value of a trial; None if it diverged."""
        self.optuna.tell(optuna_trial, NOT_FINITE if value is None else value)


def make_sampler(seed: int, number: int, *, parallel: bool = False) -> optuna.samplers.TPESampler:
    """Return an independent tree-structured Parzen estimator, seeded per trial."""
    trial_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    return optuna.samplers.TPESampler(seed=trial_seed, multivariate=False, constant_liar=parallel)


def rank_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Sort trials, best first, without diverged ones. Ties: larger decay, fewer iterations, smaller lr."""
    finite = [trial for trial in trials if trial.value is not None]

    def key(trial: Trial) -> tuple[float, float, int, float]:
        assert trial.value is not None
        hyperparameters = trial.hyperparameters
        return -trial.value, -hyperparameters.weight_decay, hyperparameters.iterations, hyperparameters.lr

    return sorted(finite, key=key)


def search_space_values() -> dict[str, Any]:
    """Return the search space as JSON values, for the fingerprint."""
    return {name: [one.low, one.high, one.log] for name, one in SEARCH_SPACE.items()}


def _open_storage(journal: Path) -> JournalStorage:
    if not journal.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {journal.parent} to write {journal.name} to")
    _drop_partial_line(journal)
    path = str(journal.resolve())
    return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))


def _drop_partial_line(journal: Path) -> None:
    """Remove an incomplete last line, left by a kill; its trial is run again."""
    if not journal.exists():
        return
    data = journal.read_bytes()
    complete_lines = data[: data.rfind(b"\n") + 1]
    if complete_lines != data:
        logger.warning("%s: removed an incomplete last line", journal)
        with journal.open("r+b") as file:
            file.truncate(len(complete_lines))


def check_ray() -> None:
    """Raise ValueError with the pip command if Ray Tune cannot be imported."""
    try:
        importlib.import_module("ray.tune.search.optuna")
    except ImportError as error:
        raise ValueError(f"the executor ray needs Ray Tune ({error}): pip install 'covid-cmsf[ray]'") from None


def run_with_ray(
    objective: Callable[..., float | None],
    study: Study,
    num_trials: int,
    *,
    seed: int,
    on_trial: Callable[[], None],
    device: str,
    **data: Any,
) -> None:
    """Run `num_trials` more trials of `objective(hyperparameters, device=..., **data)`; results go to the study."""
    check_ray()
    ray: Any = importlib.import_module("ray")
    tune: Any = importlib.import_module("ray.tune")
    searcher = importlib.import_module("ray.tune.search.optuna").OptunaSearch
    if study.storage is None:
        raise ValueError("the executor ray needs a journal, which its processes share")

    def trainable(config: dict[str, Any], **fixed: Any) -> None:
        value = objective(Hyperparameters(**config), **fixed)
        tune.report({RAY_METRIC: NOT_FINITE if value is None else value})

    progress_callback = type("Counting", (tune.Callback,), {"on_trial_complete": lambda *_, **__: on_trial()})()
    started_here = not ray.is_initialized()
    if started_here:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent anywhere
        ray.init(log_to_driver=False, include_dashboard=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            search_algorithm = searcher(
                space=SEARCH_SPACE, metric=RAY_METRIC, mode="max", study_name=STUDY_NAME, storage=study.storage,
                sampler=make_sampler(seed, len(study.trials()), parallel=True),
            )  # fmt: skip
            on_gpu = device.startswith("cuda")
            resources = {"cpu": 1, "gpu": 1 if on_gpu else 0}
            device = "cuda" if on_gpu else device  # Ray makes one GPU visible to each trial
            trainable_with_data = tune.with_resources(tune.with_parameters(trainable, device=device, **data), resources)
            results = tune.Tuner(
                trainable_with_data,
                tune_config=tune.TuneConfig(search_alg=search_algorithm, num_samples=num_trials),
                run_config=tune.RunConfig(
                    name=STUDY_NAME, storage_path=folder, callbacks=[progress_callback], verbose=0
                ),
            ).fit()
    finally:
        if started_here:
            ray.shutdown()
    if results.errors:
        raise RuntimeError(f"{len(results.errors)} of {num_trials} trials failed; the first: {results.errors[0]}")


def search(
    train: LabeledFeatures,
    val: LabeledFeatures,
    *,
    metric: Metric = "top1",
    num_trials: int = NUM_TRIALS,
    seed: int = 0,
    journal: Path | None = None,
    data_fingerprint: str = "",
    replace: bool = False,
    executor: str = "local",
    device: torch.device | str = "cpu",
    on_trial: Callable[[], None] = lambda: None,
) -> list[Trial]:
    """Search hyper-parameters; return the trials, best on val first, without diverged ones.

    With a `journal` a killed search is resumed, with the same trials if the executor is local. `data_fingerprint`
    identifies the features: a journal of other features is a FileExistsError unless `replace`.
    """
    if num_trials < 1:
        raise ValueError(f"num_trials = {num_trials}: must be at least 1")
    check_executor(executor)
    num_classes = int(max(train.labels.max(), val.labels.max())) + 1
    fingerprint = compute_fingerprint(
        {"data_fingerprint": data_fingerprint, "metric": metric, "seed": seed, "space": search_space_values()}
    )
    study = Study(journal, fingerprint, seed=seed, replace=replace)
    for _ in study.trials(num_trials):
        on_trial()
    missing = num_trials - len(study.trials(num_trials))
    if executor == "ray" and missing:
        run_with_ray(
            val_accuracy, study, missing, seed=seed, on_trial=on_trial,
            train=train, val=val, metric=metric, num_classes=num_classes, device=str(device),
        )  # fmt: skip
    elif missing:
        train = LabeledFeatures(train.features.to(device), train.labels.to(device))
        for _ in range(missing):
            optuna_trial, hyperparameters = study.ask()
            value = val_accuracy(hyperparameters, train, val, metric=metric, num_classes=num_classes, device=device)
            study.tell(optuna_trial, value)
            on_trial()
    done = study.trials(num_trials)
    if len(done) < num_trials:
        raise RuntimeError(f"the search stopped after {len(done)} of {num_trials} trials; the same command resumes it")
    best = rank_trials(done)
    if not best:
        raise RuntimeError(f"none of {num_trials} trials had a finite loss; are the features very large?")
    return best


def check_executor(name: str) -> None:
    """Raise ValueError if the executor is unknown or not installed."""
    if name not in EXECUTORS:
        raise ValueError(f"unknown executor {name!r}; choose from {', '.join(EXECUTORS)}")
    if name == "ray":
        check_ray()


def val_accuracy(
    hyperparameters: Hyperparameters,
    train: LabeledFeatures,
    val: LabeledFeatures,
    *,
    metric: Metric,
    num_classes: int,
    device: torch.device | str,
) -> float | None:
    """Train with these hyper-parameters; return the accuracy on val in percent, None if it diverges."""
    try:
        classifier = fit_classifier(train, hyperparameters, num_classes=num_classes, device=device)
    except NotFiniteError:
        return None
    return accuracy(classifier.predict(val.features), val.labels, metric)
