"""The commands that are disturbed, on a small generated set of videos; each takes seconds."""

import multiprocessing
import multiprocessing.context
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.disturbances.processes import Running

NETWORK_EVENTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request")
NETWORK_USED = 99  # exit code
VIDEOS = "--classes 2 --groups 4 --clips-per-group 2 --frames 12 --size 48x36 --workers 1".split()
SMALL: dict[str, Any] = {
    "clips": "../reference/preprocess/out",
    "encoder": "c21d_tiny",
    "views": {"length": 4, "stride": 1, "size": 24, "frame_size": 30},
    "batch_size": 4,
    "logging": {"interval": 1},
    # A checkpoint after every step: more states to be killed in.
    "runtime": {"device": "cpu", "workers": 0, "threads": 1, "tensorboard": False, "save_minutes": 1e-9},
}
INFONCE = {"method": {"name": "infonce", "bank_size": 16}, "schedule": {"epochs": 2}}
CMSF = {"method": {"name": "cmsf", "num_candidates": 4, "k": 2, "bank_size": 16}, "schedule": {"epochs": 1}}
FILES: dict[str, dict[str, Any]] = {
    "run.yaml": {**SMALL, **INFONCE},
    "plan.yaml": {
        "defaults": SMALL,
        "rounds": 1,
        "first": "rgb",
        "pretrain": INFONCE,
        "cmsf": CMSF,
        "evaluation": {"windows": 1},
    },
}


@dataclass(frozen=True)
class Command:
    """Something that writes `out`, in its folder, and goes on with what is there when it is called again."""

    name: str
    body: Callable[[], None]  # what its process does
    rules: str = "bytes"  # of `tools.disturbances.compare`
    weight: int = 1  # how often it is disturbed, compared with others
    out: str = "out"

    def start(self, folder: Path, *, max_file_size: int | None = None) -> Running:
        """Start it in `folder`, where `out` is or will be."""
        return Running(self.body, folder, max_file_size=max_file_size)


def covid_cmsf(*arguments: str) -> Callable[[], None]:
    """Return what the process of `covid-cmsf ARGUMENTS` does, with smaller pieces of work than usual."""

    def body() -> None:
        from covid_cmsf.cli import main

        _make_small()
        sys.addaudithook(refuse_network)
        sys.argv = ["covid-cmsf", *arguments]
        main()

    return body


def refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    """End the process, as an audit hook, when it is about to reach another machine or to look up its name.

    Processes that it forks inherit this, those that it spawns do not.
    """
    is_file = event == "socket.connect" and isinstance(arguments[1], str | bytes)  # a socket file of this machine
    if event in NETWORK_EVENTS and not is_file:
        print("NETWORK:", event, arguments[1:], file=sys.stderr, flush=True)
        os._exit(NETWORK_USED)


def all_commands() -> list[Command]:
    """Return the commands in an order in which each finds its inputs in the results of those before."""
    inputs, results = "../inputs", "../reference"
    clips, weights = f"{results}/preprocess/out", f"{results}/train/out"
    layout = f"--layout ucf101 --splits {inputs}/videos/splits --flow-backend dis --workers 1".split()
    project = "--out out --short-edge 32 --device cpu --workers 1".split()
    return [
        Command("preprocess", covid_cmsf("preprocess", f"{inputs}/videos", "--out", "out", *layout), "clips", 3),
        Command("train", covid_cmsf("train", f"{inputs}/run.yaml", "--out", "out"), "run", 3),
        Command("cotrain", covid_cmsf("cotrain", f"{inputs}/plan.yaml", "--out", "out"), "run"),
        Command("extract", covid_cmsf("extract", weights, clips, "--out", "out", "--workers", "0"), weight=3),
        Command("learn", covid_cmsf("learn", f"{inputs}/videos", *project), "run"),
        Command("search index", covid_cmsf("search", "index", clips, "--weights", weights, "--out", "out"), weight=3),
    ]


def write_inputs(folder: Path) -> None:
    """Generate the videos, and write the configurations."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in FILES.items():
        (folder / name).write_text(yaml.safe_dump(values))
    ended = Running(covid_cmsf("demo-videos", "videos", *VIDEOS), folder).end(600)
    if ended.code != 0:
        raise RuntimeError(f"demo-videos ended with code {ended.code}: {ended.output}")


def import_everything() -> None:
    """Import what the commands import, once, before they are forked."""
    import torch

    import covid_cmsf.cli.app
    import covid_cmsf.commands
    import covid_cmsf.cotrain.stage
    import covid_cmsf.search.build
    import covid_cmsf.search.page.write
    import covid_cmsf.training.run  # noqa: F401

    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimizer imports hundreds of modules


_REAL_GET_CONTEXT: Callable[[str | None], multiprocessing.context.BaseContext] = multiprocessing.get_context


class _ForkContext(multiprocessing.context.ForkContext):
    """Stages of a plan are forked from its process; the usual server would import everything again, for seconds."""

    def set_forkserver_preload(self, module_names: Sequence[str]) -> None:
        """Do nothing: it is imported."""


def _make_small() -> None:
    from covid_cmsf.cotrain import executor
    from covid_cmsf.evaluation.features import extract
    from covid_cmsf.projects import sizes

    vars(extract)["SHARD_SIZE"] = 4
    sizes.ANCHORS["cpu"] = sizes.Anchor("c21d_tiny", 4, 24, 1, 760, 0.3, 0.1, 4, 60_000, 10)
    sizes.MIN_STEPS_PER_EPOCH = 4
    vars(executor)["multiprocessing"].get_context = _get_context


def _get_context(method: str | None = None) -> multiprocessing.context.BaseContext:
    return _ForkContext() if method == "forkserver" else _REAL_GET_CONTEXT(method)
