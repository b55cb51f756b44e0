"""Where the metrics of a run go besides metrics.jsonl: `runtime.loggers`. A new logger is a class and an entry here."""

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from covid_cmsf.files import read_text, write_text_atomic

LoggerName = Literal["tensorboard", "wandb"]
WandbMode = Literal["offline", "online"]
PROJECT = "covid-cmsf"


class MetricsLogger(Protocol):
    """Receives the numbers of every line of metrics.jsonl."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoardLogger:
    """Write RUN/tensorboard; a resumed run replaces what was written after its step."""

    def __init__(self, folder: Path, *, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._board: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1, flush_secs=30)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar per number."""
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        self._board.close()


class WandbLogger:
    """Write RUN/wandb in the format of Weights & Biases; every start of a run has the same id, kept beside.

    With `mode="offline"` nothing is sent, whatever the environment says; `wandb sync` sends it later. Of this machine
    nothing is recorded in either mode: no system metrics, console, code, git state or list of packages.
    """

    def __init__(self, folder: Path, *, config: Mapping[str, Any], mode: WandbMode) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported: it reports its crashes
        import wandb

        id_file = folder / "wandb" / "run-id.txt"
        if not id_file.is_file():
            id_file.parent.mkdir(exist_ok=True)
            write_text_atomic(id_file, uuid.uuid4().hex)
        settings = wandb.Settings(
            console="off",
            silent=True,
            host="",
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=PROJECT,
            id=read_text(id_file).strip(),
            name=folder.resolve().name,
            dir=folder,
            config=dict(config),
            mode=mode,
            resume="allow" if mode == "online" else None,  # offline, every start has a folder; `wandb sync` joins them
            settings=settings,
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish this start of the run."""
        self._run.finish()


def make_loggers(
    names: Sequence[LoggerName], folder: Path, *, step: int, config: Mapping[str, Any], wandb_mode: WandbMode
) -> list[MetricsLogger]:
    """Return the named loggers of a run in `folder` that has done `step` steps, with this `config`."""
    makers: dict[LoggerName, Callable[[], MetricsLogger]] = {
        "tensorboard": lambda: TensorBoardLogger(folder, step=step),
        "wandb": lambda: WandbLogger(folder, config=config, mode=wandb_mode),
    }
    assert tuple(makers) == get_args(LoggerName)
    return [makers[name]() for name in dict.fromkeys(names)]


def check_loggers(names: Sequence[LoggerName]) -> list[str]:
    """Return what is missing for the named loggers, one line each."""
    if "wandb" in names and find_spec("wandb") is None:
        return ["runtime.loggers: wandb is not installed: pip install 'covid-cmsf[wandb]'"]
    return []
