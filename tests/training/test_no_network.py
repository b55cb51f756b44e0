"""A run with default settings talks to no other machine, and writes nothing that was not asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from covid_cmsf.training.config import RuntimeConfig
from covid_cmsf.training.run_dir import config_to_dict
from tests.training.factories import make_config

# Every attempt to reach another machine, or to look up its name, ends the process with the event's name.
NO_NETWORK = """
import os, sys
def refuse(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], str):
        return  # a socket file of this machine
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        print("NETWORK:", event, arguments[1:], file=sys.stderr, flush=True)
        os._exit(99)
sys.addaudithook(refuse)
"""
FILES = {"config.yaml", "environment.jsonl", "metrics.jsonl", "log.txt", "checkpoints", "summary.json"}


def test_nothing_is_written_for_tensorboard_or_wandb_unless_asked_for() -> None:
    assert RuntimeConfig().loggers == () and RuntimeConfig().wandb_mode == "offline"


@pytest.mark.slow
def test_a_run_with_default_settings_talks_to_nobody(clips: Path, tmp_path: Path) -> None:
    values = config_to_dict(make_config(clips, encoder="s3d_tiny", schedule={"epochs": 1}))
    del values["runtime"]["loggers"]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    script = NO_NETWORK + "from covid_cmsf.cli import main\nsys.exit(main())"
    command = [sys.executable, "-c", script, "train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")} == FILES


@pytest.mark.parametrize(
    "attempt",
    [
        "import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=1)",
        "import socket\nsocket.getaddrinfo('localhost', 80)",
        "import urllib.request\nurllib.request.urlopen('http://localhost:9')",
    ],
)
def test_the_watch_over_the_network_sees_a_connection(attempt: str) -> None:
    assert subprocess.run([sys.executable, "-c", NO_NETWORK + attempt], capture_output=True).returncode == 99
