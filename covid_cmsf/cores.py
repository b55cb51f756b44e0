"""How many cores this process may use."""

import os


def available_cores() -> int:
    """Return the cores that the process may run on; all of the machine where the system does not tell (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
