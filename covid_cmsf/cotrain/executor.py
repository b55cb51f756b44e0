"""Execute the stages of a plan like a build system: skip what is done, run what is ready, in parallel if requested.

Every stage runs in its own process, forked from a server that already has the heavy imports. It exits when this process
does, for whatever reason, so a killed plan leaves no processes; the same command resumes in the middle of a stage.

The process holds the stage's lock, so several commands, also on several machines with a shared disk, work on one plan:
each runs the stages that no other one is running.
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
from types import FrameType

from covid_cmsf import exit_codes
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.stage import is_done, read_stage_key, terminate_launched, write_stage_key
from covid_cmsf.files import remove_temporary
from covid_cmsf.locks import Locked, is_locked, lock_file
from covid_cmsf.training.signals import SIGNALS, StopRequest

logger = logging.getLogger(__name__)
POLL = 0.5  # seconds
POLL_ELSEWHERE = 2.0  # seconds between looks at stages that other processes run
LOCKED = 76  # exit code of a stage's process when another process has the stage's lock


@dataclass
class Execution:
    """State of a plan that is being executed. A running stage occupies one of `slots`.

    States are waiting, running, elsewhere (another process runs it), done, failed, and `not selected` (excluded by
    --only or --from).
    """

    work: Callable[[Stage, str], None]  # runs a stage in a slot; called in the stage's process
    slots: list[str]  # cpu#1, cuda:0, cuda:0,1, ...
    stop: StopRequest
    on_change: Callable[[dict[str, str]], None] = lambda states: None  # takes {id: state}
    running: dict[str, tuple[BaseProcess, str]] = field(default_factory=dict)  # {id: (process, slot)}
    states: dict[str, str] = field(default_factory=dict)  # {id: state}


def execute(stages: Sequence[Stage], selected: set[str], execution: Execution) -> int:
    """Run the selected stages and return an exit code. After a failure, stages that do not depend on it still run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["covid_cmsf.cotrain.preload"])
    states = execution.states
    states |= stage_states(stages, selected)
    order = longest_chain_first(stages) if len(execution.slots) > 1 else stages
    looked = time.monotonic()
    execution.on_change(states)
    try:
        while True:
            if not execution.stop.asked:
                _start_ready_stages(order, execution, context)
            if not execution.running and (execution.stop.asked or "elsewhere" not in states.values()):
                break
            _wait_for_stage(execution)
            if time.monotonic() - looked > POLL_ELSEWHERE:
                _look_elsewhere(stages, states)
                looked = time.monotonic()
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
    """Return done, waiting or `not selected` of each stage, by id.

    A stage with a result is done, unless a waiting stage needs its checkpoint and that was deleted.
    """
    states: dict[str, str] = {}
    needed: set[str] = set()
    for stage in reversed(stages):
        usable = stage.id not in needed or stage.config is None or stage.checkpoint.is_file()
        if is_done(stage) and usable:
            states[stage.id] = "done"
        else:
            states[stage.id] = "waiting" if stage.id in selected else "not selected"
            needed |= set(stage.needed_ids) if stage.id in selected else set()
    return {stage.id: states[stage.id] for stage in stages}


def longest_chain_first(stages: Sequence[Stage]) -> list[Stage]:
    """Sort the stages of each split and seed by the longest chain of stages that depend on them.

    A long chain started last would leave devices idle. Ties go to the stage with more dependencies: with a guide it
    runs two networks and takes longer. A later seed's stages fill slots that the earlier ones leave free.
    """
    chain: dict[str, int] = {stage.id: 1 for stage in stages}
    for stage in reversed(stages):
        for name in stage.needed_ids:
            chain[name] = max(chain[name], chain[stage.id] + 1)
    first = {name: i for i, name in enumerate(dict.fromkeys(stage.repetition for stage in stages))}
    return sorted(stages, key=lambda stage: (first[stage.repetition], -chain[stage.id], -len(stage.needs)))


def _start_ready_stages(
    stages: Sequence[Stage], execution: Execution, context: multiprocessing.context.ForkServerContext
) -> None:
    states = execution.states
    for stage in stages:
        occupied = {slot for _, slot in execution.running.values()}
        free = [slot for slot in execution.slots if slot not in occupied]
        if not free:
            return
        if states[stage.id] != "waiting":
            continue
        needed = {states[name] for name in stage.needed_ids}
        if needed & {"failed", "not selected"}:
            states[stage.id] = "failed"
            missing = [name for name in stage.needed_ids if states[name] in ("failed", "not selected")]
            logger.error(
                "stage %s cannot run: it needs %s, which failed or was not selected", stage.id, ", ".join(missing)
            )
        elif needed <= {"done"} and is_locked(stage.lock):
            states[stage.id] = "elsewhere"
            logger.info("stage %s is being run by another process", stage.id)
        elif needed <= {"done"}:
            if reason := why_replaced(stage):
                logger.info("%s; its old results are moved to %s", reason, stage.folder.parent / "replaced")
            stage.folder.parent.mkdir(parents=True, exist_ok=True)
            process = context.Process(target=_stage_process, args=(execution.work, stage, free[0]), name=stage.name)
            process.start()
            execution.running[stage.id] = process, free[0]
            states[stage.id] = "running"
            logger.info("stage %s started%s", stage.id, f" on {free[0]}" if len(execution.slots) > 1 else "")


def _look_elsewhere(stages: Sequence[Stage], states: dict[str, str]) -> None:
    """Update the stages that other processes run. One that was given up there, or failed, is tried here."""
    for stage in stages:
        if states[stage.id] == "elsewhere" and not is_locked(stage.lock):
            states[stage.id] = "done" if is_usable(stage) else "waiting"
            if states[stage.id] == "done":
                logger.info("stage %s done by another process", stage.id)


def _wait_for_stage(execution: Execution) -> None:
    if not execution.running:  # others run what is left
        time.sleep(POLL)
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
        elif code == LOCKED:  # another process was faster
            execution.states[name] = "elsewhere"
        else:
            logger.error("stage %s failed (exit code %s)", name, code)


def _forward_signal(execution: Execution) -> None:
    for process, _ in execution.running.values():
        if process.pid is not None:
            os.kill(process.pid, signal.SIGTERM)
    for process, _ in execution.running.values():
        process.join()


def is_usable(stage: Stage) -> bool:
    """Whether the stage has a result, and the checkpoint that other stages may need."""
    return is_done(stage) and (stage.config is None or stage.checkpoint.is_file())


def why_replaced(stage: Stage) -> str:
    """Return why the stage's folder cannot be continued; empty if it can, or if there is none."""
    if stage.folder.exists() and not stage.has_key(read_stage_key(stage.folder)):
        return f"the configuration of stage {stage.id} has changed"
    if stage.config is not None and is_done(stage) and not stage.checkpoint.is_file():
        return f"the checkpoint of stage {stage.id} was deleted, and a later stage needs it: it is trained again"
    return ""


def prepare_folder(stage: Stage) -> None:
    """Create the stage's folder. Results of another configuration are moved to `replaced/`; those of this one stay.

    A result whose checkpoint was deleted, and is needed, is moved too.
    """
    if why_replaced(stage):
        moved = stage.folder.parent / "replaced" / f"{stage.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        number = 1
        while moved.exists():
            number += 1
            moved = moved.with_name(f"{moved.name}-{number}")
        moved.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(stage.folder, moved)
    stage.folder.mkdir(parents=True, exist_ok=True)
    write_stage_key(stage.folder, stage.key)


def _stage_process(work: Callable[[Stage, str], None], stage: Stage, slot: str) -> None:
    """Run a stage in its process. Outside of training, which handles signals itself, a signal ends the process."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    for number in SIGNALS:
        signal.signal(number, _exit_interrupted)
    try:
        with lock_file(stage.lock):
            if is_usable(stage):  # another process has done it meanwhile
                return
            prepare_folder(stage)
            remove_temporary(stage.folder)
            work(stage, slot)
    except Locked:
        sys.exit(LOCKED)
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
    """Return the ids of the stages to run: all, `only` one, or all from `start` on.

    A name stands for the stage of every split and seed; an id such as `split-2/seed-0/cmsf-rgb-1` for one.
    """
    numbers = {stage.name: stage.number for stage in stages}
    for name in (only, start):
        if name is not None and name not in numbers and (name == start or name not in {one.id for one in stages}):
            raise ValueError(f"there is no stage {name!r}; choose from {', '.join(numbers)}")
    if only is not None:
        return {stage.id for stage in stages if only in (stage.name, stage.id)}
    return {stage.id for stage in stages if start is None or stage.number >= numbers[start]}
