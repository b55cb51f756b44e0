"""A real Slurm on this one machine, for the tests of `--engine slurm`: munged, slurmctld and slurmd in a folder.

    apt-get install slurm-wlm munge        # Debian, Ubuntu
    python tools/local_slurm.py start /tmp/slurm
    export SLURM_CONF=/tmp/slurm/slurm.conf
    sbatch --wrap hostname
    python tools/local_slurm.py stop /tmp/slurm

Needs root. Nothing outside of the folder is changed, and a Slurm that is there already is not touched.
"""

import argparse
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo")
CONFIG = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={port}
SlurmdPort={node_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_interval=1
JobRequeue=1
KillWait=20
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """Return the programs of Slurm that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]


def search_path() -> str:
    """Return PATH with the folders of system programs."""
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


def start(folder: Path, *, cpus: int, timeout: float = 60.0) -> Path:
    """Start a cluster of one node; return its slurm.conf. RuntimeError if it does not come up."""
    if missing := missing_programs():
        raise RuntimeError(f"not installed: {', '.join(missing)}; on Debian: apt-get install slurm-wlm munge")
    folder = folder.absolute()
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True, exist_ok=True, mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    ports = _free_ports(2)
    config.write_text(CONFIG.format(host=host, folder=folder, port=ports[0], node_port=ports[1], cpus=cpus))
    munge = folder / "munge"
    files = [f"--{name}={munge / name.partition('-')[0]}" for name in ("key-file", "socket", "pid-file", "log-file")]
    _run(["munged", "--force", *files, f"--seed-file={munge / 'seed'}"], config)
    _run(["slurmctld", "-c"], config)
    _run(["slurmd", "-c"], config)
    deadline = time.monotonic() + timeout
    while True:
        state = subprocess.run(["sinfo", "-h", "-o", "%t"], env=_environment(config), capture_output=True, text=True)
        if state.stdout.strip() == "idle":
            return config
        if time.monotonic() > deadline:
            stop(folder)
            raise RuntimeError(f"Slurm did not start in {timeout:.0f} s ({state.stdout}{state.stderr}); see {folder}")
        time.sleep(0.3)


def stop(folder: Path) -> None:
    """Stop the cluster and the jobs that it runs."""
    config = folder.absolute() / "slurm.conf"
    if config.is_file():
        subprocess.run(["scancel", "--user=root", "--full"], env=_environment(config), capture_output=True, timeout=30)
    for path in (folder / "slurmd.pid", folder / "slurmctld.pid", folder / "munge" / "pid"):
        try:
            os.kill(int(path.read_text()), signal.SIGTERM)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            continue


def _run(command: list[str], config: Path) -> None:
    ended = subprocess.run(command, env=_environment(config), capture_output=True, text=True, timeout=60)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr.strip()}")


def _environment(config: Path) -> dict[str, str]:
    return {**os.environ, "SLURM_CONF": str(config), "PATH": search_path()}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def main() -> None:
    """Start or stop a cluster in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("start", "stop"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpus", type=int, default=os.cpu_count() or 1, help="cores that Slurm gives away")
    chosen = parser.parse_args()
    if chosen.action == "stop":
        stop(chosen.folder)
        return
    try:
        print(f"export SLURM_CONF={start(chosen.folder, cpus=chosen.cpus)}")
    except RuntimeError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
