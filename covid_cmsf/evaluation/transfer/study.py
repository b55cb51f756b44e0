"""Trials in a file: a study of Optuna that knows which features it belongs to and survives being killed."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from covid_cmsf.evaluation.transfer.classifier import Setting

logger = logging.getLogger(__name__)
NAME = "transfer"
# The paper's space, log-uniform; its iterations begin at 0, which has no logarithm.
SPACE: dict[str, Any] = {
    "iterations": IntDistribution(1, 1000, log=True),
    "lr": FloatDistribution(1e-6, 1.0, log=True),
    "weight_decay": FloatDistribution(1e-9, 1.0, log=True),
}
NOT_FINITE = -1.0  # worse than any accuracy


@dataclass(frozen=True)
class Trial:
    """`value`: percent on val; None when the setting diverged."""

    setting: Setting
    value: float | None


class Study:
    """Finished trials in order, and the next one to try. Without a file they live in memory only."""

    def __init__(self, journal: Path | None, identity: str, *, seed: int, replace: bool = False) -> None:
        """FileExistsError when the file holds trials of another `identity`, unless `replace`."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.storage = None if journal is None else _storage(journal)
        self._seed = seed
        self.optuna = self._open()
        known = self.optuna.user_attrs.get("identity", identity)
        if known != identity:
            assert journal is not None and self.storage is not None
            if not replace:
                raise FileExistsError(f"{journal} holds trials of other features or options; --force replaces it")
            optuna.delete_study(study_name=NAME, storage=self.storage)
            self.optuna = self._open()
        self.optuna.set_user_attr("identity", identity)
        for left in self.optuna.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            self.optuna.tell(left.number, state=TrialState.FAIL)  # a kill left it behind

    def _open(self) -> optuna.Study:
        return optuna.create_study(storage=self.storage, study_name=NAME, direction="maximize", load_if_exists=True)

    def trials(self, limit: int | None = None) -> list[Trial]:
        """What was tried, the first `limit` of it."""
        finished = self.optuna.get_trials(deepcopy=False, states=[TrialState.COMPLETE])[:limit]
        return [Trial(Setting(**one.params), None if one.value == NOT_FINITE else one.value) for one in finished]

    def ask(self) -> tuple[Any, Setting]:
        """A ticket and what to try. It follows from the seed and the finished trials, whoever made them and when."""
        done = len(self.optuna.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))
        self.optuna.sampler = sampler(self._seed, done)
        ticket = self.optuna.ask(fixed_distributions=SPACE)
        return ticket, Setting(**ticket.params)

    def tell(self, ticket: Any, value: float | None) -> None:
        """The ticket's result."""
        self.optuna.tell(ticket, NOT_FINITE if value is None else value)


def sampler(seed: int, number: int, *, parallel: bool = False) -> optuna.samplers.TPESampler:
    """The tree-structured Parzen estimator, each parameter on its own, with dice of its own for every trial."""
    dice = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    return optuna.samplers.TPESampler(seed=dice, multivariate=False, constant_liar=parallel)


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Best first, without those that diverged. Of equals: stronger decay, then fewer iterations, then smaller lr."""
    finite = [trial for trial in trials if trial.value is not None]

    def key(trial: Trial) -> tuple[float, float, int, float]:
        assert trial.value is not None
        setting = trial.setting
        return -trial.value, -setting.weight_decay, setting.iterations, setting.lr

    return sorted(finite, key=key)


def space_values() -> dict[str, Any]:
    """The space as plain values, for fingerprints."""
    return {name: [one.low, one.high, one.log] for name, one in SPACE.items()}


def _storage(journal: Path) -> JournalStorage:
    if not journal.parent.is_dir():
        raise FileNotFoundError(f"no folder {journal.parent} to write {journal.name} into")
    _mend(journal)
    place = str(journal.resolve())
    return JournalStorage(JournalFileBackend(place, lock_obj=JournalFileOpenLock(place)))


def _mend(journal: Path) -> None:
    """Takes off a last line that was not written to its end: the trial it told of is made again."""
    if not journal.exists():
        return
    whole = journal.read_bytes()
    kept = whole[: whole.rfind(b"\n") + 1]
    if kept != whole:
        logger.warning("%s ended within a line; that line was dropped", journal)
        with journal.open("r+b") as file:
            file.truncate(len(kept))
