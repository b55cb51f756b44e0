"""The commands talk to no other machine, and write nothing that was not asked for."""

from pathlib import Path

import pytest
import yaml

from covid_cmsf.training.config import RuntimeConfig
from covid_cmsf.training.run_dir import config_to_dict
from tests.network_watch import REFUSED, run_watched
from tests.training.factories import make_config
from tools.disturbances.commands import INFONCE, SMALL, VIDEOS

FILES = {"config.yaml", "environment.jsonl", "metrics.jsonl", "log.txt", "checkpoints", "summary.json"}
ONE_COMMAND = "import sys\nfrom covid_cmsf.cli import main\nsys.exit(main())"
# Several commands in one process, for importing takes longer than each; what they spawn is a process of its own.
COMMANDS = """
import sys
from pathlib import Path
from covid_cmsf.cli.app import build_command
if __name__ == "__main__":
    for line in Path("commands.txt").read_text().splitlines():
        code = build_command()(line.split(), standalone_mode=False)
        assert not code, line
"""


def test_nothing_is_written_for_tensorboard_or_wandb_unless_asked_for() -> None:
    assert RuntimeConfig().loggers == () and RuntimeConfig().wandb_mode == "offline"


@pytest.mark.slow
def test_a_run_with_default_settings_talks_to_nobody(clips: Path, tmp_path: Path) -> None:
    values = config_to_dict(make_config(clips, encoder="s3d_tiny", schedule={"epochs": 1}))
    del values["runtime"]["loggers"]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    ended = run_watched(ONE_COMMAND, "train", "run.yaml", "--out", "run", folder=tmp_path)
    assert ended.code == 0 and ended.attempts == [], f"{ended.attempts} {ended.stderr}"
    assert {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")} == FILES


@pytest.mark.slow
def test_no_process_of_the_main_commands_talks_to_anybody(tmp_path: Path) -> None:
    small = {**SMALL, "clips": "clips", "runtime": {"device": "cpu", "workers": 1, "threads": 1}}
    stage = {"name": "infonce-rgb", "config": "infonce", "modality": "rgb", "epochs": 1}
    plan = {"defaults": {**small, **INFONCE}, "evaluation": {"windows": 1}, "stages": [stage]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    weights = "plan/infonce-rgb"
    lines = [
        f"demo-videos videos {' '.join(VIDEOS)}",
        "preprocess videos --out clips --layout ucf101 --splits videos/splits --flow-backend dis --workers 1",
        "cotrain plan.yaml --out plan",
        f"extract {weights} clips --out features.st --workers 0 --processes 2",
        f"search index clips --weights {weights} --out index",
        "report plan --out report.html",
    ]
    (tmp_path / "commands.txt").write_text("\n".join(lines))
    ended = run_watched(COMMANDS, folder=tmp_path)
    assert ended.code == 0 and ended.attempts == [], f"{ended.attempts} {ended.stderr}"
    spawned = [process for process in ended.processes if "spawn_main" in process]
    assert len(spawned) >= 3, ended.processes
    assert any("forkserver" in process for process in ended.processes), "stages of the plan"


CONNECT = "import socket\nsocket.create_connection(('192.0.2.1', 9), timeout=1)"  # an address that nobody has
SPAWN = """
import multiprocessing, socket
if __name__ == "__main__":
    address = (("192.0.2.1", 9), 1)
    process = multiprocessing.get_context({method!r}).Process(target=socket.create_connection, args=address)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""


@pytest.mark.parametrize(
    "attempt",
    [
        CONNECT,
        "import socket\nsocket.getaddrinfo('example.org', 80)",
        "import socket\nsocket.gethostbyname('example.org')",
        "import socket\nsocket.socket(type=socket.SOCK_DGRAM).sendto(b'1', ('192.0.2.1', 9))",
        "import urllib.request\nurllib.request.urlopen('http://192.0.2.1:9')",
        f"import subprocess, sys\nsys.exit(subprocess.run([sys.executable, '-c', {CONNECT!r}]).returncode)",
        *(SPAWN.format(method=method) for method in ("fork", "spawn", "forkserver")),
    ],
)
def test_the_watch_over_the_network_sees_a_connection(attempt: str, tmp_path: Path) -> None:
    ended = run_watched(attempt, folder=tmp_path)
    assert ended.code == REFUSED and len(ended.attempts) == 1, ended


def test_this_machine_may_be_reached(tmp_path: Path) -> None:
    local = "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
    ended = run_watched(f"{local}socket.create_connection(server.getsockname()).close()", folder=tmp_path)
    assert ended.code == 0 and ended.attempts == [], f"{ended.attempts} {ended.stderr}"
