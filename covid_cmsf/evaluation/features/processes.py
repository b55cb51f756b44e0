"""Share the shards of an extraction among processes, one per device.

A shard's values do not depend on who computes it, so the file is the same, to the last bit, as from one process with
as many threads.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

Work = Callable[[Sequence[int], torch.device, Callable[[], None]], Any]  # shards, device, called after every video


@dataclass(frozen=True)
class _Returned:
    value: Any


def run_on_devices(
    work: Work, shards: Sequence[int], devices: Sequence[torch.device], *, on_video: Callable[[], None]
) -> list[Any]:
    """Call `work` for all shards: here for one device, in a process per device for several.

    Returns what the calls return (no tensors), unless that is None, in any order. `work` is sent to the processes, so
    it must be picklable and on the CPU. RuntimeError if one of them fails; the others are then ended.
    """
    devices = devices[: max(1, len(shards))]
    if len(devices) == 1:
        value = work(shards, devices[0], on_video)
        return [] if value is None else [value]
    returned: list[Any] = []
    context = multiprocessing.get_context("spawn")
    running: dict[Connection, BaseProcess] = {}
    try:
        for number, device in enumerate(devices):
            receiver, sender = context.Pipe(duplex=False)
            args = (work, shards[number :: len(devices)], device, torch.get_num_threads(), sender)
            running[receiver] = context.Process(target=_run, args=args, name=f"{device}#{number}")
            running[receiver].start()
            sender.close()  # so that the child's end is the only one
        while running:
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                if (message := _receive(ready, running, on_video)) is not None:
                    returned.append(message.value)
    finally:
        for process in running.values():
            if process.pid is not None:
                process.kill()
                process.join()
    return returned


def _receive(
    receiver: Connection, running: dict[Connection, BaseProcess], on_video: Callable[[], None]
) -> _Returned | None:
    try:
        message = receiver.recv()
    except EOFError:
        process = running.pop(receiver)
        process.join()
        if process.exitcode:
            how = f"was killed by signal {-process.exitcode}" if process.exitcode < 0 else "failed"
            raise RuntimeError(f"the process of {process.name} {how}; the same command resumes") from None
        return None
    if isinstance(message, _Returned):
        return message
    if message is not None:
        raise RuntimeError(message)
    on_video()
    return None


def _run(work: Work, shards: Sequence[int], device: torch.device, num_threads: int, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(num_threads)  # it changes the last bits
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        value = work(shards, device, lambda: sender.send(None))
        if value is not None:
            sender.send(_Returned(value))
    except (ValueError, RuntimeError, OSError) as error:
        with suppress(OSError):  # nobody listens any more
            sender.send(str(error))


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
