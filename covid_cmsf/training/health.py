"""Is the run healthy? Mean shift fails by losing rank while loss and purity look fine, so rank is what is watched."""

import logging

from covid_cmsf.methods.banks import Banks
from covid_cmsf.methods.diagnostics import embedding_std
from covid_cmsf.methods.method import Facts
from covid_cmsf.models.spectrum import effective_rank
from covid_cmsf.training.progress import Progress
from covid_cmsf.training.settings import WatchSettings

logger = logging.getLogger(__name__)
MAX_ROWS = 4096  # of the bank that are looked at


class Collapse(RuntimeError):
    """The embeddings have collapsed and the settings say to stop."""


def bank_facts(banks: Banks) -> Facts:
    """Fill, age, spread and effective rank of the targets in the bank."""
    bank = banks.everyone
    rows = bank.rows("target")[:MAX_ROWS]
    facts = {"bank_rows": float(len(bank)), "bank_age": bank.mean_age()}
    if len(rows) > 1:
        facts |= {"embedding_std": embedding_std(rows), "effective_rank": effective_rank(rows)}
    return facts


def check_collapse(facts: Facts, progress: Progress, settings: WatchSettings, *, warned: bool) -> bool:
    """Notes the best rank; warns once, or stops, when rank or spread are far below. Returns whether it has warned."""
    rank, std = facts.get("effective_rank"), facts.get("embedding_std")
    if rank is None or std is None:
        return warned
    progress.best_rank = max(progress.best_rank, rank)
    lost = rank < settings.collapse_rank * progress.best_rank
    if not lost and std >= settings.collapse_std:
        return warned
    words = (
        f"step {progress.step}: the embeddings are collapsing: effective rank {rank:.1f} "
        f"(best so far {progress.best_rank:.1f}), spread {std:.2f} (1 is even). A lower learning rate, a higher "
        "ema_momentum, method.head.output_batch_norm=true or a longer InfoNCE start help"
    )
    if settings.on_collapse == "stop":
        raise Collapse(words)
    if not warned:
        logger.warning(words)
    return True
