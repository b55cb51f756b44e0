"""Imports for the fork server of stage processes: done once, inherited by every stage.

The server is not a stage, so it ignores the signals that a scheduler sends to the whole process group. This has to be
a module of its own: `set_forkserver_preload` imports it by name, in the server only.
"""

import signal

import covid_cmsf.cotrain.stage  # noqa: F401 (the heavy imports)

for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
