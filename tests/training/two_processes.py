"""Run by torchrun: `two_processes.py JOBS`, a JSON list of {settings, folder, stops, again}.

Each process leaves its banks and what came of every start. `again` is whether a stopped run is continued.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from covid_cmsf.config import load_config
from covid_cmsf.training import loop, run
from covid_cmsf.training.failure import NonFiniteLoss
from covid_cmsf.training.settings import TrainSettings
from tests.training.toy import add_toy

RANK = int(os.environ["RANK"])


def do(job: dict[str, Any]) -> None:
    folder, stops = Path(job["folder"].replace("RANK", str(RANK))), job["stops"]
    train, measure = loop.train, loop.measure

    def watched_train(one: loop.Run) -> Any:
        outcome = train(one)
        assert one.parts.banks is not None
        torch.save(one.parts.banks.state_dict(), folder / f"banks-{RANK}.pt")
        return outcome

    def watched_measure(one: loop.Run, outcome: Any) -> None:
        measure(one, outcome)
        if one.progress.step in stops and RANK == 1:  # it is enough that one of them is asked
            signal.raise_signal(signal.SIGTERM)

    run.train, loop.measure = watched_train, watched_measure
    try:
        chosen = load_config(TrainSettings, Path(job["settings"]))
        outcomes = [start(chosen, folder)]
        while outcomes[-1] == "stopped" and job["again"]:
            outcomes.append(start(chosen, folder))
    finally:
        run.train, loop.measure = train, measure
    (folder / f"outcomes-{RANK}.json").write_text(json.dumps(outcomes))


def start(chosen: TrainSettings, folder: Path) -> str:
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
