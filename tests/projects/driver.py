"""`covid-cmsf learn` with very small plans, in a process that kills itself as soon as a file is new.

    python -m tests.projects.driver KILL_WHEN VIDEOS --out PROJECT ...

KILL_WHEN is a pattern below PROJECT, with the signal in front (`KILL:runs/*/metrics.jsonl`), or `never`.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from covid_cmsf.cli import main
from covid_cmsf.projects import sizes

TINY = sizes.Anchor("c21d_tiny", 4, 24, 1, 760, 0.3, 0.1, 4, 60_000, 10)


def kill_when(signal_name: str, project: Path, pattern: str) -> None:
    """Send a signal to this process when a file of that name is new."""
    before = set(project.glob(pattern))
    while not set(project.glob(pattern)) - before:
        time.sleep(0.002)
    os.kill(os.getpid(), getattr(signal, f"SIG{signal_name}"))


if __name__ == "__main__":
    sizes.ANCHORS["cpu"] = TINY
    sizes.MIN_STEPS_PER_EPOCH = 4
    condition = sys.argv.pop(1)
    if condition != "never":
        name, _, wanted = condition.partition(":")
        folder = Path(sys.argv[sys.argv.index("--out") + 1])
        threading.Thread(target=kill_when, args=(name, folder, wanted), daemon=True).start()
    main("learn")
