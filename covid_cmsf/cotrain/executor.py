"""Does the stages of a plan like a build system: what is done stays, what is ready runs, side by side if asked to.

Every stage is a process of its own, forked from a server that has the heavy imports already. It ends with this process,
however that ends, so a killed plan leaves nothing running; the same command continues in the middle of a stage.
"""

import logging
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from covid_cmsf import exit_codes
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.stage import is_done, read_stage_key, terminate_launched, write_stage_key
from covid_cmsf.training.signals import SIGNALS, StopRequest

logger = logging.getLogger(__name__)
POLL = 0.5  # seconds


@dataclass
class Execution:
    """What runs where. `devices` are handed out to stages; one that is done gives its own back."""

    work: Callable[[Stage, str], None]  # does a stage in a place; runs in the stage's process
    devices: list[str]  # the places
    stop: StopRequest
    on_change: Callable[[dict[str, str]], None] = lambda states: None  # {stage: waiting, running, done, failed}
    running: dict[str, tuple[BaseProcess, str]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)


def execute(stages: Sequence[Stage], wanted: set[str], execution: Execution) -> int:
    """Does the wanted stages and returns an exit code. A failure lets others finish that do not need it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["covid_cmsf.cotrain.preload"])
    states = execution.states
    for stage in stages:
        states[stage.name] = "done" if is_done(stage) else "waiting" if stage.name in wanted else "left out"
    order = longest_chain_first(stages) if len(execution.devices) > 1 else stages
    execution.on_change(states)
    try:
        while True:
            if not execution.stop.asked:
                _start_ready_stages(order, execution, context)
            if not execution.running:
                break
            _wait_for_stage(execution)
            execution.on_change(states)
            if execution.stop.asked:
                _forward_signal(execution)
    finally:
        for process, _ in execution.running.values():
            process.kill()
    if execution.stop.asked:
        return exit_codes.INTERRUPTED
    return exit_codes.FAILED if "failed" in states.values() else exit_codes.SUCCESS


def longest_chain_first(stages: Sequence[Stage]) -> list[Stage]:
    """Side by side, what most stages in a row wait for goes first: a chain begun last would leave devices idle.

    Of equals the one with more needs: with a guide a stage has two networks to feed, and long work is best begun early.
    """
    chain: dict[str, int] = {stage.name: 1 for stage in stages}
    for stage in reversed(stages):
        for name in stage.needs:
            chain[name] = max(chain[name], chain[stage.name] + 1)
    return sorted(stages, key=lambda stage: (-chain[stage.name], -len(stage.needs)))


def _start_ready_stages(
    stages: Sequence[Stage], execution: Execution, context: multiprocessing.context.ForkServerContext
) -> None:
    states = execution.states
    for stage in stages:
        free = [one for one in execution.devices if one not in {device for _, device in execution.running.values()}]
        if not free:
            return
        if states[stage.name] != "waiting":
            continue
        needed = {states[name] for name in stage.needs}
        if needed & {"failed", "left out"}:
            states[stage.name] = "failed"
            missing = [name for name in stage.needs if states[name] in ("failed", "left out")]
            logger.error("stage %s cannot run: it needs %s", stage.name, ", ".join(missing))
        elif needed <= {"done"}:
            prepare_folder(stage)
            process = context.Process(target=_stage_process, args=(execution.work, stage, free[0]), name=stage.name)
            process.start()
            execution.running[stage.name] = process, free[0]
            states[stage.name] = "running"
            logger.info("stage %s begins%s", stage.name, f" on {free[0]}" if len(execution.devices) > 1 else "")


def _wait_for_stage(execution: Execution) -> None:
    wait([process.sentinel for process, _ in execution.running.values()], timeout=POLL)
    for name, (process, _) in list(execution.running.items()):
        if process.is_alive():
            continue
        process.join()
        del execution.running[name]
        code = process.exitcode
        execution.states[name] = {exit_codes.SUCCESS: "done", exit_codes.INTERRUPTED: "waiting"}.get(
            code or 0, "failed"
        )
        if code == exit_codes.SUCCESS:
            logger.info("stage %s is done", name)
        elif code == exit_codes.INTERRUPTED or execution.stop.asked:
            execution.states[name] = "waiting"
            execution.stop.asked = True  # also when somebody stopped the stage itself
        else:
            logger.error("stage %s failed (exit code %s)", name, code)


def _forward_signal(execution: Execution) -> None:
    for process, _ in execution.running.values():
        if process.pid is not None:
            os.kill(process.pid, signal.SIGTERM)
    for process, _ in execution.running.values():
        process.join()


def prepare_folder(stage: Stage) -> None:
    """The stage's folder, empty or with the beginning of this very stage; what another version left is put aside."""
    if stage.folder.exists() and read_stage_key(stage.folder) != stage.key:
        aside = stage.folder.parent / "replaced" / f"{stage.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        number = 1
        while aside.exists():
            number += 1
            aside = aside.with_name(f"{aside.name}-{number}")
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(stage.folder, aside)
        logger.info("the settings of stage %s have changed: its old results are in %s", stage.name, aside)
    stage.folder.mkdir(parents=True, exist_ok=True)
    write_stage_key(stage.folder, stage.key)


def _stage_process(work: Callable[[Stage, str], None], stage: Stage, device: str) -> None:
    """The process of a stage. Asked to stop elsewhere than in training, it ends; the same command continues."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    for number in SIGNALS:
        signal.signal(number, _exit_interrupted)
    try:
        work(stage, device)
    finally:
        _kill_workers()


def _kill_workers() -> None:
    """Kills data loading workers that an interruption left behind: asked once they live on, and Python would wait."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler takes their end for a failure
    for worker in multiprocessing.active_children():
        worker.kill()


def _exit_interrupted(number: int, frame: FrameType | None) -> None:
    sys.exit(exit_codes.INTERRUPTED)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    terminate_launched()
    os.kill(os.getpid(), signal.SIGKILL)


def select_stages(stages: Sequence[Stage], *, only: str | None, start: str | None) -> set[str]:
    """The stages that are wanted: all, `only` one, or all from `start` on."""
    names = [stage.name for stage in stages]
    for name in (only, start):
        if name is not None and name not in names:
            raise ValueError(f"no stage {name!r}; there are {', '.join(names)}")
    if only is not None:
        return {only}
    return set(names[names.index(start) :]) if start is not None else set(names)


def seed_dir(out: Path, seed: int | None) -> Path:
    """Where the stages of one seed are."""
    return out if seed is None else out / f"seed-{seed}"
