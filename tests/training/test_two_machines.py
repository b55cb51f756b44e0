"""Two machines with one process each: two network namespaces that see each other through a pair of virtual cards."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.signals import TORCHRUN_OPTIONS
from tests.training.command import write_config_file
from tests.training.factories import differing, make_config
from tests.training.test_distributed import kill_processes_of

ROOT = Path(__file__).parent.parent.parent
CARD = "pair"
ADDRESSES = ("10.99.0.1", "10.99.0.2")


@contextmanager
def network_namespace(name: str) -> Iterator[str]:
    ip("netns", "add", name)
    try:
        yield name
    finally:
        ip("netns", "delete", name)


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True, timeout=30)


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces with an address each; no packet leaves them."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need `ip`: apt-get install iproute2")
    with ExitStack() as stack:
        try:
            first, second = (stack.enter_context(network_namespace(f"cmsf-{os.getpid()}-{i}")) for i in (1, 2))
            ip("-n", first, "link", "add", CARD, "type", "veth", "peer", "name", CARD, "netns", second)
            for name, address in zip((first, second), ADDRESSES, strict=True):
                ip("-n", name, "address", "add", f"{address}/24", "dev", CARD)
                ip("-n", name, "link", "set", CARD, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        yield first, second


class Launched:
    """`torchrun -m covid_cmsf train`, once per machine; `alone` has two processes on this machine."""

    def __init__(self, config: Path, out: Path, machines: Sequence[str] = ()) -> None:
        self.out, self.logs, self.processes = out, [], []
        alone = ["--standalone", "--nproc-per-node=2"]
        joined = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:29400"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": CARD}
        for number in range(max(1, len(machines))):
            place = ["ip", "netns", "exec", machines[number]] if machines else []
            host = f"--rdzv-conf=is_host={number == 0}"  # found by itself only where names can be looked up
            here = ["--rdzv-id=test", f"--local-addr={ADDRESSES[number]}", host]
            rendezvous = [*joined, *here] if machines else alone
            launcher = [sys.executable, "-m", "torch.distributed.run", *rendezvous, *TORCHRUN_OPTIONS]
            program = ["-m", "covid_cmsf", "train", str(config), "--out", str(out)]
            if not machines:
                del environment["GLOO_SOCKET_IFNAME"]
            self.logs.append(out.with_name(f"{out.name}-{len(list(out.parent.glob('*.log')))}.log"))
            with self.logs[-1].open("w") as log:
                process = subprocess.Popen([*place, *launcher, *program], stdout=log, stderr=log, env=environment)
            self.processes.append(process)

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        kill_processes_of(self.out)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 600
        while not condition():
            assert all(process.poll() is None for process in self.processes), self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)

    def end(self) -> list[int]:
        return [process.wait(timeout=600) for process in self.processes]

    def said(self) -> str:
        return "\n".join(path.read_text() for path in self.logs)

    def rank(self, number: int) -> int:
        """The process of a rank: the child of its machine's torchrun."""
        pid = self.processes[number].pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)


def steps(folder: Path) -> int:
    lines = read_metrics(folder / "metrics.jsonl")
    return lines[-1]["step"] if lines else 0


@pytest.mark.slow
def test_two_machines_train_as_one_does_and_resume_after_a_signal_and_a_kill(
    machines: tuple[str, str], clips: Path, tmp_path: Path
) -> None:
    small = {"encoder": "c21d_tiny", "views": {"length": 2, "size": 16}, "schedule": {"epochs": 30}}
    config = write_config_file(make_config(clips, **small), tmp_path / "run.yaml")
    with Launched(config, tmp_path / "alone") as alone:
        assert alone.end() == [0], alone.said()
    out = tmp_path / "joined"
    with Launched(config, out, machines) as joined:
        joined.until(lambda: steps(out) >= 2)
        joined.processes[1].send_signal(signal.SIGTERM)
        assert 0 not in joined.end()
        assert "stopped at step" in joined.said() and "the same command resumes" in joined.said(), joined.said()
    saved = steps(out)
    assert 2 <= saved < steps(tmp_path / "alone")
    with Launched(config, out, machines) as joined:
        joined.until(lambda: steps(out) >= saved + 2)
        os.kill(joined.rank(1), signal.SIGKILL)
        assert 0 not in joined.end()
        assert "process 0 lost another one" in joined.said() and "The same command resumes" in joined.said()
        assert "Signal 9 (SIGKILL) received" in joined.said()  # what torchrun says on the machine itself
    with Launched(config, out, machines) as joined:
        assert joined.end() == [0, 0], joined.said()
    assert differing(tmp_path / "alone", out) == []
