"""Worker processes, one thread each, that convert videos and report over a pipe.

Started with `spawn`, so that no lock or thread of the parent is copied. A worker dies with its parent, and the parent
outlives a worker that crashes, hangs or is killed for memory: that costs one video.
"""

import errno
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from preprocess.settings import Setup, flow_of

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Job:
    """One video to convert: from where, to which temporary files."""

    video_id: str
    source: Path
    targets: Mapping[str, Path]


@dataclass(frozen=True)
class Report:
    """What a worker says: that it is ready, frames done so far, or one of the three ends of a job."""

    job: Job | None  # None: about the worker itself
    frames: int = 0  # more frames of this job were done
    facts: Any = None  # ClipFacts: the job is done
    failure: tuple[str, str] | None = None  # (stage, reason): this video can't be done
    fatal: str | None = None  # the run can't go on, whatever the video
    disk_full: bool = False  # that is why


@dataclass
class Worker:
    """One process and the job it has."""

    process: Any
    pipe: Connection
    job: Job | None = None
    ready: bool = False  # imports, compilation and a first flow are done: only now the time limit runs
    deadline: float = field(default=float("inf"))


class WorkerPool:
    """`num_workers` processes. `give` jobs while `idle`, then collect `reports`; `close` ends them at once."""

    def __init__(self, setups: list[Setup], *, time_limit: float) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._setups = setups
        self._time_limit = time_limit
        self._workers = [self._start(setup) for setup in setups]

    @property
    def idle(self) -> int:
        """How many workers have no job."""
        return sum(worker.job is None for worker in self._workers)

    @property
    def busy(self) -> bool:
        """Whether any worker has a job."""
        return self.idle < len(self._workers)

    def give(self, job: Job) -> None:
        """Hands a job to an idle worker."""
        index = next(index for index, worker in enumerate(self._workers) if worker.job is None)
        try:
            self._workers[index].pipe.send(job)
        except BrokenPipeError:  # it was killed while it had nothing to do
            self._replace(index)
            self._workers[index].pipe.send(job)
        worker = self._workers[index]
        worker.job = job
        if worker.ready:
            worker.deadline = time.monotonic() + self._time_limit

    def reports(self, *, timeout: float) -> list[Report]:
        """What the workers have said since the last call; waits up to `timeout` seconds for something."""
        reports = []
        for ready in wait([worker.pipe for worker in self._workers], timeout):
            index = next(i for i, worker in enumerate(self._workers) if worker.pipe is ready)
            reports += self._listen(index)
        for index, worker in enumerate(self._workers):
            if worker.job is not None and time.monotonic() > worker.deadline:
                reason = f"took longer than {self._time_limit:g} s"
                reports.append(Report(worker.job, failure=("time limit", reason)))
                self._replace(index)
        return reports

    def close(self) -> None:
        """Kills the workers; their open videos stay undone."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()

    def _start(self, setup: Setup) -> Worker:
        pipe, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(theirs, setup, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        return Worker(process, pipe)

    def _replace(self, index: int) -> None:
        worker = self._workers[index]
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self._workers[index] = self._start(self._setups[index])

    def _listen(self, index: int) -> list[Report]:
        worker = self._workers[index]
        try:
            report: Report = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            return self._bury(index)
        if report.job is None and report.fatal is None:
            worker.ready = True
            worker.deadline = time.monotonic() + self._time_limit if worker.job is not None else float("inf")
            return []
        if not report.frames:
            worker.job, worker.deadline = None, float("inf")
        return [report]

    def _bury(self, index: int) -> list[Report]:
        """A worker died: its video is set aside and a new worker takes its place."""
        worker = self._workers[index]
        worker.process.join()
        code, job = worker.process.exitcode, worker.job
        if not worker.ready:
            raise RuntimeError(f"a worker process could not start (exit code {code}); `covid-cmsf doctor` may tell why")
        self._replace(index)
        if job is None:
            return []
        cause = f"by signal {-code} (9: out of memory?)" if code < 0 else f"with exit code {code}"
        return [Report(job, failure=("worker", f"the worker process was ended {cause}"))]


def work(pipe: Connection, setup: Setup, parent: int) -> None:
    """The life of a worker process: jobs in, reports out, until the pipe closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    import cv2
    import numpy as np

    from preprocess.convert import StageError, convert

    cv2.setNumThreads(1)
    info = setup.info
    try:
        flow = flow_of(info, setup.device)
        if flow is not None:  # compiles, or finds out that the device does not work
            flow(np.random.default_rng(0).integers(0, 256, (2, 32, 32), dtype=np.uint8))
    except Exception as error:  # noqa: BLE001 (without flow no video can be done: the run ends and says so)
        pipe.send(Report(None, fatal=f"optical flow does not work here: {type(error).__name__}: {error}"))
        return
    pipe.send(Report(None))
    while True:
        try:
            job: Job = pipe.recv()
        except EOFError:
            return

        def tell(frames: int, job: Job = job) -> None:
            pipe.send(Report(job, frames=frames))

        try:
            facts = convert(job.source, job.targets, info, decoder=setup.decoder, flow=flow, on_frames=tell)
            pipe.send(Report(job, facts=facts))
        except StageError as error:
            pipe.send(Report(job, failure=(error.stage, error.reason)))
        except Exception as error:  # noqa: BLE001 (the per-video boundary: it becomes a row of failures.csv)
            if getattr(error, "errno", None) in DISK_FULL:
                pipe.send(Report(job, fatal=f"the disk is full: {error}", disk_full=True))
            else:
                pipe.send(Report(job, failure=("convert", f"{type(error).__name__}: {error}")))


def _die_with(parent: int) -> None:
    """Ends this process when its parent is gone, also in the middle of a video."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
