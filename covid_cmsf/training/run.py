"""A run from settings to its last checkpoint: begins it, or continues it where it stopped."""

import json
import logging
import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

from covid_cmsf.atomic import write_text_atomic
from covid_cmsf.config import validate
from covid_cmsf.logs import add_text, remove_log
from covid_cmsf.training.checkpoints import Checkpoints
from covid_cmsf.training.data import make_loader
from covid_cmsf.training.display import display
from covid_cmsf.training.guide_cache import embed_views, finished, read_cache, write_cache
from covid_cmsf.training.loop import Run, how_of, train, whole_steps
from covid_cmsf.training.metrics import Metrics, last_metrics
from covid_cmsf.training.parts import Parts, build_parts
from covid_cmsf.training.processes import Processes, processes
from covid_cmsf.training.progress import Progress, restore_
from covid_cmsf.training.run_folder import check_same, locked, note_environment, plain, write_config
from covid_cmsf.training.settings import GuideSettings, RuntimeSettings, TrainSettings
from covid_cmsf.training.signals import stop_request
from covid_cmsf.views.dataset import ViewDataset

logger = logging.getLogger(__name__)


def run_training(
    settings: TrainSettings, folder: Path, *, accept_changes: bool = False
) -> Literal["finished", "stopped"]:
    """Trains in `folder`, which is made, or whose run is continued."""
    with ExitStack() as stack:
        stop = stack.enter_context(stop_request())
        group = stack.enter_context(processes(settings.runtime.device))
        set_threads(settings.runtime)
        checkpoints = Checkpoints(folder / "checkpoints")
        if group.first:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
            stack.callback(remove_log, add_text(folder / "log.txt"))
        group.wait()
        values = checkpoints.load()
        if values is not None and not accept_changes:
            check_same(folder, validate(TrainSettings, values["settings"], place=str(folder)), settings)
        parts = build_parts(settings, group)
        loader = make_loader(parts.data, settings, group)
        progress = Progress() if values is None else restore_(parts, values, group)
        if values is not None and progress.batch:
            check_same_batches(values["settings"], settings)
        del values
        if len(set(group.gather_objects(progress.step))) > 1:
            raise ValueError(f"the processes do not see the same {folder}: it must be on storage that they share")
        if group.first:
            write_config(folder, settings)
        fill_caches_(parts, settings, group, folder)
        total = settings.schedule.epochs * whole_steps(loader, how_of(settings))
        metrics = None
        if group.first:
            _say_what_happens(parts, settings, progress, folder, group)
            metrics = Metrics(folder, step=progress.step, tensorboard=settings.runtime.tensorboard)
            stack.callback(metrics.close)
        shown = stack.enter_context(display(total=total, done=progress.step, quiet=not group.first))
        run = Run(settings, parts, loader, progress, checkpoints, metrics, group, stop, shown)
        outcome = train(run)
        for guide in parts.guides:
            guide.check_unchanged()
        if group.first:
            _say_the_end(run, folder, outcome)
        return outcome


def fill_caches_(parts: Parts, settings: TrainSettings, group: Processes, folder: Path | None) -> None:
    """Computes the guides' cached views, or reads those that an earlier start of this run has left in the folder."""
    for guide, chosen in zip(parts.guides, settings.guides, strict=True):
        if chosen.cache == "none":
            continue
        key, path = _cache_key(settings, chosen, guide.fingerprint), None
        if folder is not None:
            path = folder / f"{guide.column}.safetensors"
        views = read_cache(path, key) if path is not None else None
        if views is None:
            source = parts.data.views
            wanted = settings.views.model_copy(update={"modalities": (guide.modality,)})
            data = ViewDataset(
                parts.data.clips,
                source.records,
                wanted,
                seed=settings.seed,
                defer=source.defer,
                online=(),
                target=(guide.modality,),
            )
            size = max(1, settings.batch_size // group.count)
            with torch.random.fork_rng(devices=[]):  # whether the cache was there must not be seen in the run
                views = embed_views(
                    guide,
                    data,
                    num_views=chosen.cached_views,
                    batch_size=size,
                    workers=settings.runtime.workers,
                    processes=group,
                )
            if path is not None and group.first:
                write_cache(path, views, key)
        parts.cached[guide.column] = finished(views, mean=chosen.cache == "mean", center=chosen.center).to(group.device)


def check_same_batches(old: dict[str, Any], settings: TrainSettings) -> None:
    """ValueError when, in the middle of an epoch, batches would not be the same as in its beginning."""
    now = plain(settings)
    changed = [name for name in ("batch_size", "repeat", "seed") if old[name] != now[name]]
    changed += ["optimizer.accumulate"] if old["optimizer"]["accumulate"] != now["optimizer"]["accumulate"] else []
    if changed:
        raise ValueError(f"the run is in the middle of an epoch: {', '.join(changed)} can change at its end only")


def set_threads(runtime: RuntimeSettings) -> None:
    """As many as asked for; 0: what the workers leave of the cores, for too many are far slower than too few."""
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(runtime.threads or max(1, cores - runtime.workers))


def _cache_key(settings: TrainSettings, chosen: GuideSettings, fingerprint: str) -> str:
    facts: dict[str, Any] = plain(settings)
    kept = {name: facts[name] for name in ("clips", "split", "part", "views", "seed")}
    return json.dumps([kept, chosen.modality, chosen.layer, chosen.cached_views, fingerprint])


def _say_what_happens(
    parts: Parts, settings: TrainSettings, progress: Progress, folder: Path, group: Processes
) -> None:
    facts = {"device": str(group.device), "processes": group.count, "from_step": progress.step}
    if group.device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(group.device)
    note_environment(folder, facts)
    begin = "continuing at" if progress.step else "starting at"
    logger.info(
        "%s, %d videos, %s; %s epoch %d, batch %d; everything is in %s",
        parts.card.trained,
        len(parts.data.views),
        parts.words,
        begin,
        progress.epoch,
        progress.batch,
        folder,
    )
    for guide in parts.guides:
        logger.info("guided by %s", guide.words)


def _say_the_end(run: Run, folder: Path, outcome: str) -> None:
    if outcome == "stopped":
        logger.info("stopped at step %d and saved; the same command continues", run.progress.step)
        return
    summary = {
        "trained": run.parts.card.trained,
        "init": run.settings.init,
        "progress": asdict(run.progress),
        "last": run.last_facts or last_metrics(folder / "metrics.jsonl"),
        "guides": {guide.column: {"words": guide.words, "sha256": guide.fingerprint} for guide in run.parts.guides},
        "checkpoint": str(run.checkpoints.last.relative_to(folder)),
    }
    if run.last_facts or not (folder / "summary.json").is_file():
        write_text_atomic(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    logger.info("finished: %s", run.checkpoints.last)
