"""A plan small enough for a cluster of one machine, a real Slurm on it, or a reason to skip."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cotrain.conftest import plan  # noqa: F401 (fixture)
from tests.training.conftest import clips  # noqa: F401 (fixture)
from tools.local_slurm import missing_programs, search_path, start, stop

INSTALL = "COVID_CMSF_INSTALL_SLURM"


def install_slurm() -> str | None:
    """Debian's packages, by one test process at a time and only on request; returns why not, or None."""
    if not os.environ.get(INSTALL):
        return f"no Slurm here: install slurm-wlm and munge, or let root's tests do so by apt-get with {INSTALL}=1"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return "no Slurm here, and only root can install one by apt-get"
    with (Path(tempfile.gettempdir()) / "covid-cmsf-slurm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not missing_programs():
            return None
        try:
            for args in (["update"], ["install", "-y", "--no-install-recommends", "slurm-wlm", "munge"]):
                subprocess.run(["apt-get", *args], check=True, capture_output=True, timeout=600)
        except (subprocess.SubprocessError, OSError) as error:
            return f"no Slurm here, and apt-get could not install it: {error}"
    return None


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Slurm cluster of this machine with two cores; SLURM_CONF says where."""
    if missing_programs() and (reason := install_slurm()):
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("tools/local_slurm.py needs root")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: a socket's path has at most 107 characters
    with pytest.MonkeyPatch.context() as patch:
        try:
            try:
                config = start(folder, cpus=2)
            except RuntimeError as error:
                pytest.skip(f"Slurm does not start here: {error}")
            patch.setenv("SLURM_CONF", str(config))
            patch.setenv("PATH", search_path())
            yield
        finally:
            stop(folder)
            shutil.rmtree(folder, ignore_errors=True)
