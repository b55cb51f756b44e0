"""Every program in tools/ starts as it is documented: `python tools/NAME.py`, from any folder."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
SCRIPTS = sorted(path.name for path in TOOLS.glob("*.py") if '__name__ == "__main__"' in path.read_text())


def test_there_are_scripts() -> None:
    assert {"benchmark.py", "chaos.py", "plan_results.py", "results.py"} <= set(SCRIPTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_explains_itself(name: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(TOOLS / name), "--help"], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert ended.returncode == 0 and "usage" in ended.stdout.lower(), ended.stderr
