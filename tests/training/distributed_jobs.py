"""Run by torchrun: `distributed_jobs.py JOBS`, a JSON list of {config, folder, stops, again}.

Each process leaves its banks and what came of every start. `again` is whether a stopped run is continued. In a `blind`
job only the first process sees the guides' caches, as on a network disk that is slow to show new files.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from covid_cmsf.config import load_config
from covid_cmsf.training import loop, run
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.failures import NonFiniteLoss
from covid_cmsf.training.guides import read_guide_cache
from covid_cmsf.training.step import StepResult
from tests.training.factories import add_toy

RANK = int(os.environ["RANK"])


def do(job: dict[str, Any]) -> None:
    folder, stops = Path(job["folder"].replace("RANK", str(RANK))), job["stops"]
    train, log_metrics = loop.train, loop.log_metrics

    def watched_train(one: loop.Run) -> str:
        outcome = train(one)
        assert one.components.banks is not None
        torch.save(one.components.banks.state_dict(), folder / f"banks-{RANK}.pt")
        return outcome

    def watched_metrics(one: loop.Run, result: StepResult) -> None:
        log_metrics(one, result)
        if one.train_state.step in stops and RANK == 1:  # it is enough that one of them is asked
            signal.raise_signal(signal.SIGTERM)

    def see_nothing(path: Path, key: str) -> None:
        return None

    read = see_nothing if job.get("blind") and RANK == 1 else read_guide_cache
    with (
        patch.object(run, "train", watched_train),
        patch.object(loop, "log_metrics", watched_metrics),
        patch.object(run, "read_guide_cache", read),
    ):
        chosen = load_config(TrainConfig, Path(job["config"]))
        outcomes = [start(chosen, folder)]
        while outcomes[-1] == "stopped" and job["again"]:
            outcomes.append(start(chosen, folder))
    (folder / f"outcomes-{RANK}.json").write_text(json.dumps(outcomes))


def start(chosen: TrainConfig, folder: Path) -> str:
    try:
        return run.run_training(chosen, folder)
    except NonFiniteLoss:
        return "not finite"
    except ValueError as error:
        return str(error)


if __name__ == "__main__":
    add_toy()
    for job in json.loads(Path(sys.argv[1]).read_text()):
        do(job)
