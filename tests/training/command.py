"""`covid-cmsf` as processes of their own, which can be signaled and killed.

They are forked from a server that has imported everything already, for importing takes longer than these runs.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import yaml

import covid_cmsf.cli.app
import covid_cmsf.training.dry_run
import covid_cmsf.training.run
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.run_dir import config_to_dict
from tests.training.factories import add_toy

torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimizer imports hundreds of modules

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


class Command:
    """One running `covid-cmsf ...`."""

    def __init__(self, *args: object, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        arguments = ([str(arg) for arg in args], str(log), dict(environment or {}))
        self.process = CONTEXT.Process(target=_main, args=arguments)
        self.process.start()

    def until(self, there: Callable[[], bool], *, seconds: float = 60) -> None:
        """Waits until something is there; the command must not end before."""
        end = time.monotonic() + seconds
        while not there():
            assert self.process.is_alive(), self.said()
            assert time.monotonic() < end, "waited too long: " + self.said()
            time.sleep(0.005)

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self, *, seconds: float = 120) -> int:
        """The exit code."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "it hangs: " + self.said()
        return self.process.exitcode

    def said(self) -> str:
        return self.log.read_text() if self.log.is_file() else ""


def write_config_file(chosen: TrainConfig, path: Path) -> Path:
    """As a file for the command line."""
    path.write_text(yaml.safe_dump(config_to_dict(chosen)))
    return path


def _main(args: list[str], log: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    add_toy()
    sys.argv = ["covid-cmsf", *args]
    covid_cmsf.cli.app.main()
