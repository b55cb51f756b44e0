"""What the server of stage processes imports, once. It is no stage, so signals to the whole group are not for it."""

import signal

import covid_cmsf.cotrain.stage  # noqa: F401 (the heavy imports)

for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
