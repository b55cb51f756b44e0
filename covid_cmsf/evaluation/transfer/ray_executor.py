"""Many trials at once with Ray Tune, whose Optuna search writes into the same study: the paper's set-up.

Several trials run while others are being drawn, so which settings are tried depends on timing. Ray is an extra.
"""

import importlib
import os
import tempfile
from collections.abc import Callable
from typing import Any

from covid_cmsf.evaluation.transfer.classifier import Setting
from covid_cmsf.evaluation.transfer.study import NAME, NOT_FINITE, SPACE, Study, sampler

METRIC = "val_accuracy"


def check_ray() -> None:
    """ValueError with the remedy when Ray Tune cannot be imported."""
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
    """`num_trials` more trials of `objective(setting, device=..., **data)`; ValueError when Ray is not installed."""
    check_ray()
    ray: Any = importlib.import_module("ray")
    tune: Any = importlib.import_module("ray.tune")
    searcher = importlib.import_module("ray.tune.search.optuna").OptunaSearch
    if study.storage is None:
        raise ValueError("the executor ray needs a journal: its processes meet in that file")

    def trainable(config: dict[str, Any], **given: Any) -> None:
        value = objective(Setting(**config), **given)
        tune.report({METRIC: NOT_FINITE if value is None else value})

    counting = type("Counting", (tune.Callback,), {"on_trial_complete": lambda *_, **__: on_trial()})()
    started_here = not ray.is_initialized()
    if started_here:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent anywhere
        ray.init(log_to_driver=False, include_dashboard=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            suggest = searcher(
                space=SPACE, metric=METRIC, mode="max", study_name=NAME, storage=study.storage,
                sampler=sampler(seed, len(study.trials()), parallel=True),
            )  # fmt: skip
            on_gpu = device.startswith("cuda")
            resources = {"cpu": 1, "gpu": 1 if on_gpu else 0}
            device = "cuda" if on_gpu else device  # Ray gives each trial a GPU, and the trial sees no other
            whole = tune.with_resources(tune.with_parameters(trainable, device=device, **data), resources)
            results = tune.Tuner(
                whole,
                tune_config=tune.TuneConfig(search_alg=suggest, num_samples=num_trials),
                run_config=tune.RunConfig(name=NAME, storage_path=folder, callbacks=[counting], verbose=0),
            ).fit()
    finally:
        if started_here:
            ray.shutdown()
    if results.errors:
        raise RuntimeError(f"{len(results.errors)} of {num_trials} trials failed; the first: {results.errors[0]}")
