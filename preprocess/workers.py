"""A pool of worker processes, one thread each, that convert videos and report over pipes.

Started with `spawn`, so that no lock or thread of the parent is copied. A worker exits with its parent; a worker that
crashes, hangs or is killed for memory is replaced, and only its current video is affected.
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

from preprocess.archives import Member
from preprocess.config import WorkerConfig, make_store_flow

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Job:
    """One video to convert: its file, the temporary file of each modality, and the part of the file.

    With a `member`, the file is an archive.
    """

    video_id: str
    source: Path
    targets: Mapping[str, Path]
    cut: tuple[float, float] = (0.0, float("inf"))  # seconds
    member: Member | None = None


@dataclass(frozen=True)
class WorkerMessage:
    """A message of a worker: it is ready, made progress, or finished a job (metadata, failure or fatal)."""

    job: Job | None  # None: about the worker itself
    num_frames: int = 0  # further frames of this job that were converted
    metadata: Any = None  # ClipMetadata: the job is done
    failure: tuple[str, str] | None = None  # (stage, reason): this video can't be converted
    fatal: str | None = None  # the whole run must stop
    disk_full: bool = False  # the cause of `fatal`


@dataclass
class Worker:
    """A worker process and its current job."""

    process: Any
    pipe: Connection
    job: Job | None = None
    ready: bool = False  # imports, compilation and a first flow are done; the time limit starts only then
    deadline: float = field(default=float("inf"))


class WorkerPool:
    """Worker processes, one per configuration: `submit` jobs while `idle`, `poll` their messages, then `close`."""

    def __init__(self, worker_configs: list[WorkerConfig], *, time_limit: float) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._worker_configs = worker_configs
        self._time_limit = time_limit
        self._workers = [self._start(worker_config) for worker_config in worker_configs]

    @property
    def idle(self) -> int:
        """Number of workers without a job."""
        return sum(worker.job is None for worker in self._workers)

    @property
    def busy(self) -> bool:
        """Whether any worker has a job."""
        return self.idle < len(self._workers)

    def submit(self, job: Job) -> None:
        """Send a job to an idle worker."""
        index = next(index for index, worker in enumerate(self._workers) if worker.job is None)
        try:
            self._workers[index].pipe.send(job)
        except BrokenPipeError:  # it was killed while idle
            self._replace(index)
            self._workers[index].pipe.send(job)
        worker = self._workers[index]
        worker.job = job
        if worker.ready:
            worker.deadline = time.monotonic() + self._time_limit

    def poll(self, *, timeout: float) -> list[WorkerMessage]:
        """Return the workers' messages since the last call; wait up to `timeout` seconds for the first one."""
        messages = []
        for ready in wait([worker.pipe for worker in self._workers], timeout):
            index = next(i for i, worker in enumerate(self._workers) if worker.pipe is ready)
            messages += self._receive(index)
        for index, worker in enumerate(self._workers):
            if worker.job is not None and time.monotonic() > worker.deadline:
                reason = f"took longer than {self._time_limit:g} s"
                messages.append(WorkerMessage(worker.job, failure=("time limit", reason)))
                self._replace(index)
        return messages

    def close(self) -> None:
        """Kill the workers; the videos they are converting get no outcome."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()

    def _start(self, worker_config: WorkerConfig) -> Worker:
        pipe, child_pipe = self._context.Pipe()
        process = self._context.Process(target=worker_main, args=(child_pipe, worker_config, os.getpid()), daemon=True)
        process.start()
        child_pipe.close()
        return Worker(process, pipe)

    def _replace(self, index: int) -> None:
        worker = self._workers[index]
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self._workers[index] = self._start(self._worker_configs[index])

    def _receive(self, index: int) -> list[WorkerMessage]:
        worker = self._workers[index]
        try:
            message: WorkerMessage = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            return self._handle_crash(index)
        if message.job is None and message.fatal is None:
            worker.ready = True
            worker.deadline = time.monotonic() + self._time_limit if worker.job is not None else float("inf")
            return []
        if not message.num_frames:
            worker.job, worker.deadline = None, float("inf")
        return [message]

    def _handle_crash(self, index: int) -> list[WorkerMessage]:
        """Replace a worker that died; its video becomes a failure of stage `worker`."""
        worker = self._workers[index]
        worker.process.join()
        exit_code, job = worker.process.exitcode, worker.job
        if not worker.ready:
            raise RuntimeError(
                f"a worker process could not start (exit code {exit_code}); `covid-cmsf doctor` may show the cause"
            )
        self._replace(index)
        if job is None:
            return []
        cause = f"by signal {-exit_code} (9: out of memory?)" if exit_code < 0 else f"with exit code {exit_code}"
        return [WorkerMessage(job, failure=("worker", f"the worker process was ended {cause}"))]


def worker_main(pipe: Connection, worker_config: WorkerConfig, parent: int) -> None:
    """Run a worker process: receive jobs and send messages until the pipe closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole process group; the parent handles them
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    import cv2
    import numpy as np

    from preprocess.convert import StageError, convert
    from preprocess.sources import local_source

    cv2.setNumThreads(1)
    info = worker_config.info
    try:
        flow = make_store_flow(info, worker_config.device)
        if flow is not None:  # compiles the kernels, or fails if the device does not work
            flow(np.random.default_rng(0).integers(0, 256, (2, 32, 32), dtype=np.uint8))
    except Exception as error:  # noqa: BLE001 (without flow no video can be converted: the run stops with this error)
        pipe.send(WorkerMessage(None, fatal=f"optical flow does not work here: {type(error).__name__}: {error}"))
        return
    pipe.send(WorkerMessage(None))
    while True:
        try:
            job: Job = pipe.recv()
        except EOFError:
            return

        def report_progress(num_frames: int, job: Job = job) -> None:
            pipe.send(WorkerMessage(job, num_frames=num_frames))

        try:
            folder = next(iter(job.targets.values())).parent
            with local_source(job.source, job.member, folder) as source:
                metadata = convert(
                    source,
                    job.targets,
                    info,
                    decoder=worker_config.decoder,
                    flow=flow,
                    cut=job.cut,
                    on_frames=report_progress,
                )
            pipe.send(WorkerMessage(job, metadata=metadata))
        except StageError as error:
            pipe.send(WorkerMessage(job, failure=(error.stage, error.reason)))
        except Exception as error:  # noqa: BLE001 (the per-video boundary: it becomes a row of failures.csv)
            if getattr(error, "errno", None) in DISK_FULL_ERRNOS:
                pipe.send(WorkerMessage(job, fatal=f"the disk is full: {error}", disk_full=True))
            else:
                pipe.send(WorkerMessage(job, failure=("convert", f"{type(error).__name__}: {error}")))


def _exit_with_parent(parent: int) -> None:
    """Exit this process when its parent is gone, even in the middle of a video."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
