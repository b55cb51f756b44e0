"""Execute the stages of a plan like a build system: skip what is done, run what is ready, in parallel if requested.

Every stage runs in its own process, forked from a server that already has the heavy imports. It exits when this process
does, for whatever reason, so a killed plan leaves no processes; the same command resumes in the middle of a stage.
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
    """State of a plan that is being executed. A running stage occupies one of `slots`.

    States are waiting, running, done, failed, and `not selected` (excluded by --only or --from).
    """

    work: Callable[[Stage, str], None]  # runs a stage in a slot; called in the stage's process
    slots: list[str]  # cpu#1, cuda:0, cuda:0,1, ...
    stop: StopRequest
    on_change: Callable[[dict[str, str]], None] = lambda states: None  # takes {stage: state}
    running: dict[str, tuple[BaseProcess, str]] = field(default_factory=dict)  # {stage: (process, slot)}
    states: dict[str, str] = field(default_factory=dict)


def execute(stages: Sequence[Stage], selected: set[str], execution: Execution) -> int:
    """Run the selected stages and return an exit code. After a failure, stages that do not depend on it still run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["covid_cmsf.cotrain.preload"])
    states = execution.states
    states |= stage_states(stages, selected)
    order = longest_chain_first(stages) if len(execution.slots) > 1 else stages
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


def stage_states(stages: Sequence[Stage], selected: set[str]) -> dict[str, str]:
    """Return done, waiting or `not selected` of each stage.

    A stage with a result is done, unless a waiting stage needs its checkpoint and that was deleted.
    """
    states: dict[str, str] = {}
    needed: set[str] = set()
    for stage in reversed(stages):
        usable = stage.name not in needed or stage.config is None or stage.checkpoint.is_file()
        if is_done(stage) and usable:
            states[stage.name] = "done"
        else:
            states[stage.name] = "waiting" if stage.name in selected else "not selected"
            needed |= set(stage.needs) if stage.name in selected else set()
    return {stage.name: states[stage.name] for stage in stages}


def longest_chain_first(stages: Sequence[Stage]) -> list[Stage]:
    """Sort stages by the longest chain of stages that depend on them.

    A long chain started last would leave devices idle. Ties go to the stage with more dependencies: with a guide it
    runs two networks and takes longer.
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
        occupied = {slot for _, slot in execution.running.values()}
        free = [slot for slot in execution.slots if slot not in occupied]
        if not free:
            return
        if states[stage.name] != "waiting":
            continue
        needed = {states[name] for name in stage.needs}
        if needed & {"failed", "not selected"}:
            states[stage.name] = "failed"
            missing = [name for name in stage.needs if states[name] in ("failed", "not selected")]
            logger.error(
                "stage %s cannot run: it needs %s, which failed or was not selected", stage.name, ", ".join(missing)
            )
        elif needed <= {"done"}:
            prepare_folder(stage)
            process = context.Process(target=_stage_process, args=(execution.work, stage, free[0]), name=stage.name)
            process.start()
            execution.running[stage.name] = process, free[0]
            states[stage.name] = "running"
            logger.info("stage %s started%s", stage.name, f" on {free[0]}" if len(execution.slots) > 1 else "")


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
            logger.info("stage %s done", name)
        elif code == exit_codes.INTERRUPTED or execution.stop.asked:
            execution.states[name] = "waiting"
            execution.stop.asked = True  # also if the signal went to the stage's process only
        else:
            logger.error("stage %s failed (exit code %s)", name, code)


def _forward_signal(execution: Execution) -> None:
    for process, _ in execution.running.values():
        if process.pid is not None:
            os.kill(process.pid, signal.SIGTERM)
    for process, _ in execution.running.values():
        process.join()


def prepare_folder(stage: Stage) -> None:
    """Create the stage's folder. Results of another configuration are moved to `replaced/`; those of this one stay.

    A result whose checkpoint was deleted, and is needed, is moved too.
    """
    reason = ""
    if stage.folder.exists() and read_stage_key(stage.folder) != stage.key:
        reason = f"the configuration of stage {stage.name} has changed"
    elif stage.config is not None and is_done(stage) and not stage.checkpoint.is_file():
        reason = f"the checkpoint of stage {stage.name} was deleted, and a later stage needs it: it is trained again"
    if reason:
        moved = stage.folder.parent / "replaced" / f"{stage.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        number = 1
        while moved.exists():
            number += 1
            moved = moved.with_name(f"{moved.name}-{number}")
        moved.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(stage.folder, moved)
        logger.info("%s; its old results are in %s", reason, moved)
    stage.folder.mkdir(parents=True, exist_ok=True)
    write_stage_key(stage.folder, stage.key)


def _stage_process(work: Callable[[Stage, str], None], stage: Stage, slot: str) -> None:
    """Run a stage in its process. Outside of training, which handles signals itself, a signal ends the process."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    for number in SIGNALS:
        signal.signal(number, _exit_interrupted)
    try:
        work(stage, slot)
    finally:
        _kill_workers()


def _kill_workers() -> None:
    """Kill data-loading workers left by an interruption: they ignore one signal, and Python would wait for them."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler reports their exit as a failure
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
    """Return the names of the stages to run: all, `only` one, or all from `start` on."""
    names = [stage.name for stage in stages]
    for name in (only, start):
        if name is not None and name not in names:
            raise ValueError(f"there is no stage {name!r}; choose from {', '.join(names)}")
    if only is not None:
        return {only}
    return set(names[names.index(start) :]) if start is not None else set(names)


def seed_dir(out: Path, seed: int | None, split: str | None = None) -> Path:
    """Return the folder of the stages of a seed and split."""
    out = out if split is None else out / f"split-{split}"
    return out if seed is None else out / f"seed-{seed}"
