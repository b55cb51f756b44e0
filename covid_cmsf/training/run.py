"""A training run from its configuration to the last checkpoint: start it, or resume it."""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.fingerprint import files_fingerprint
from covid_cmsf.clips.records import ClipRecord, record_identity
from covid_cmsf.config import validate
from covid_cmsf.cores import available_cores
from covid_cmsf.devices import explained_memory
from covid_cmsf.files import write_text_atomic
from covid_cmsf.logs import add_text_file, remove_handler
from covid_cmsf.models import Guide
from covid_cmsf.models.precision import fixed_shapes, resolve_precision
from covid_cmsf.preflight import raise_problems
from covid_cmsf.training.build import TrainComponents, build_components
from covid_cmsf.training.checkpoints import Checkpoints
from covid_cmsf.training.config import GuideConfig, RuntimeConfig, TrainConfig
from covid_cmsf.training.data import make_loader, resolve_workers
from covid_cmsf.training.distributed import DistributedContext, distributed_context
from covid_cmsf.training.failures import memory_advice
from covid_cmsf.training.guides import (
    OwnWindows,
    average_and_center,
    embed_own_windows,
    embed_views,
    read_guide_cache,
    write_guide_cache,
)
from covid_cmsf.training.loggers import make_loggers
from covid_cmsf.training.loop import Run, make_step_config, train, usable_batches
from covid_cmsf.training.monitor import MetricsWriter, last_metrics, progress_display
from covid_cmsf.training.online_knn import OnlineKnn
from covid_cmsf.training.preflight import check_training
from covid_cmsf.training.run_dir import (
    check_same_config,
    config_to_dict,
    create_run_dir,
    lock_dir,
    log_environment,
    write_config,
)
from covid_cmsf.training.signals import StoppedBeforeTraining, StopRequest, stop_request
from covid_cmsf.training.train_state import TrainState, restore_
from covid_cmsf.views.dataset import ViewDataset
from covid_cmsf.views.loader import ViewLoader
from covid_cmsf.views.modalities import get_modality

logger = logging.getLogger(__name__)


def run_training(config: TrainConfig, folder: Path, *, accept_changes: bool = False) -> Literal["finished", "stopped"]:
    """Train in `folder`: start a new run, or resume the one that is there."""
    with stop_request(at_once=True) as stop:
        try:
            return _run_training(config, folder, stop, accept_changes=accept_changes)
        except StoppedBeforeTraining:
            logger.info("stopped before the first step; the same command resumes")
            return "stopped"


def _run_training(
    config: TrainConfig, folder: Path, stop: StopRequest, *, accept_changes: bool
) -> Literal["finished", "stopped"]:
    with ExitStack() as stack:
        dist = stack.enter_context(
            distributed_context(config.runtime.device, timeout_minutes=config.runtime.timeout_minutes)
        )
        raise_problems(check_training(config, folder=folder))
        checkpoints = Checkpoints(folder / "checkpoints")
        if dist.is_main:
            stack.enter_context(create_run_dir(folder))
            stack.enter_context(lock_dir(folder))
            stack.callback(remove_handler, add_text_file(folder / "log.txt"))
        dist.barrier()
        values = checkpoints.load()
        if values is None:
            check_never_trained(folder)
        config = with_precision(config, dist, recorded=None if values is None else values["config"]["precision"])
        if values is not None and not accept_changes:
            check_same_config(folder, validate(TrainConfig, values["config"], origin=str(folder)), config)
        if dist.is_main:
            checkpoints.repair()
        stack.enter_context(fixed_shapes(dist.device))
        # Also for what no step does: building, guides' caches, the copy of the next batch, evaluation on the way.
        stack.enter_context(explained_memory(partial(memory_advice, config, world_size=dist.world_size)))
        set_threads(config.runtime, recorded=None if values is None else values.get("threads"))
        components = build_components(config, dist)
        knn = OnlineKnn(components, config) if config.runtime.knn_every_epochs and dist.is_main else None
        loader = make_loader(components.data, config, dist)
        train_state = TrainState() if values is None else restore_(components, values, dist)
        if values is not None:
            restore_read_counts_(loader, values.get("read_counts"), dist)
        if values is not None and train_state.batch:
            check_same_batches(values["config"], config)
        del values
        if len(set(dist.gather_objects(train_state.step))) > 1:
            raise ValueError(f"the processes see different contents of {folder}: it must be on shared storage")
        if dist.is_main:
            write_config(folder, config)
        fill_guide_caches_(components, config, dist, folder)
        total = config.schedule.epochs * usable_batches(loader, make_step_config(config, world_size=dist.world_size))
        writer = None
        if dist.is_main:
            _log_start(components, config, train_state, folder, dist)
            writer = MetricsWriter(
                folder,
                step=train_state.step,
                interval=config.logging.interval,
                loggers=make_loggers(
                    config.runtime.loggers,
                    folder,
                    step=train_state.step,
                    config=config_to_dict(config),
                    wandb_mode=config.runtime.wandb_mode,
                ),
            )
            stack.callback(writer.close)
        display = stack.enter_context(progress_display(total=total, done=train_state.step, quiet=not dist.is_main))
        run = Run(config, components, loader, train_state, checkpoints, writer, dist, stop, display, knn)
        stop.at_once = False
        status = train(run)
        for guide in components.guides:
            guide.check_unchanged()
        if dist.is_main:
            _write_summary(run, folder, status)
        return status


def fill_guide_caches_(
    components: TrainComponents, config: TrainConfig, dist: DistributedContext, folder: Path | None
) -> None:
    """Compute the guides' cached views, or read those that an earlier start of this run wrote to the folder."""
    for guide, chosen in zip(components.guides, config.guides, strict=True):
        if chosen.cache == "none":
            continue
        content = _content_hash(components.data.clips, components.data.views.records, guide.modality)
        key, path = _cache_key(config, chosen, guide, content), None
        if folder is not None:
            path = folder / f"{guide.column}.safetensors"
        # One process decides for all: a network disk may show the file to some of them only.
        views = read_guide_cache(path, key) if path is not None and dist.is_main else None
        views = dist.broadcast_object(views)
        if views is None:
            with torch.random.fork_rng(devices=[]):  # a run draws the same numbers whether the cache existed or not
                views = _compute_cache(components, config, guide, chosen.cached_views, dist)
            if path is not None and dist.is_main:
                write_guide_cache(path, views, key)
        components.cached[guide.column] = average_and_center(
            views, mean=chosen.cache == "mean", center=chosen.center
        ).to(dist.device)


def _compute_cache(
    components: TrainComponents, config: TrainConfig, guide: Guide, num_views: int, dist: DistributedContext
) -> Tensor:
    clips, source = components.data.clips, components.data.views
    size, workers = max(1, config.batch_size // dist.world_size), resolve_workers(config.runtime.workers, dist.device)
    if guide.transform is not None:
        windows = OwnWindows(clips, source.records, guide.transform, num_windows=num_views)
        return embed_own_windows(guide, windows, batch_size=size, workers=workers, dist=dist)
    data = ViewDataset(
        clips,
        source.records,
        config.views.model_copy(update={"modalities": (guide.modality,)}),
        seed=config.seed,
        defer=source.defer,
        online=(),
        target=(guide.modality,),
    )
    return embed_views(guide, data, num_views=num_views, batch_size=size, workers=workers, dist=dist)


def check_never_trained(folder: Path) -> None:
    """Raise ValueError if a run without checkpoints was finished once: its results are not overwritten."""
    if (folder / "summary.json").is_file():
        raise ValueError(
            f"{folder} holds a finished run whose checkpoints are gone: copy its checkpoints/ back, train with another "
            "--out, or remove the folder to train again"
        )
    last = last_metrics(folder / "metrics.jsonl")
    if last is not None:
        logger.warning("%s has no checkpoint, only metrics up to step %d: starting at epoch 0", folder, last["step"])


def check_same_batches(old: dict[str, Any], config: TrainConfig) -> None:
    """Raise ValueError if a run that resumes within an epoch would see other batches than its beginning did."""
    now = config_to_dict(config)
    changed = [name for name in ("batch_size", "repeat", "seed") if old[name] != now[name]]
    changed += ["optimizer.accumulate"] if old["optimizer"]["accumulate"] != now["optimizer"]["accumulate"] else []
    if changed:
        raise ValueError(f"the run is in the middle of an epoch: {', '.join(changed)} can change at its end only")


def set_threads(runtime: RuntimeConfig, *, recorded: int | None = None) -> None:
    """Set the number of threads, which the last bits of sums depend on.

    `runtime.threads`, or the number that a resumed run `recorded`, or half of this process's cores: never what depends
    on the number of workers, so that it changes no result.
    """
    cores = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = runtime.threads or recorded or max(1, cores // 2)
    if recorded not in (None, threads):
        logger.warning(
            "the run had %d threads so far, now %d: the last bits of its results may differ", recorded, threads
        )
    torch.set_num_threads(threads)


def with_precision(config: TrainConfig, dist: DistributedContext, *, recorded: str | None = None) -> TrainConfig:
    """Return the configuration with `auto` resolved: what the first process `recorded` before, or has."""
    chosen: str = config.precision
    if chosen == "auto":  # every process takes part, also where only some of them see a checkpoint
        chosen = dist.broadcast_object(recorded or resolve_precision(chosen, dist.device))
    return config.model_copy(update={"precision": chosen})


def restore_read_counts_(loader: ViewLoader, counts: list[list[int]] | None, dist: DistributedContext) -> None:
    """Set how many clips were read and replaced before a stop, so that the limit holds over all starts of a run."""
    if counts is None:  # version 0.1.0
        return
    if len(counts) == dist.world_size:
        loader.num_seen, loader.num_replaced = counts[dist.rank]
    else:
        loader.num_seen, loader.num_replaced = (sum(column) // dist.world_size for column in zip(*counts, strict=True))


def _content_hash(clips: Clips, records: Sequence[ClipRecord], modality: str) -> str:
    """Return a hash of the videos' records and of the files that a guide sees: a store may change at its place."""
    files = files_fingerprint(clips, records, (get_modality(modality).stored_modality,))
    identities = json.dumps([files, *map(record_identity, records)])
    return hashlib.sha256(identities.encode()).hexdigest()


def _cache_key(config: TrainConfig, chosen: GuideConfig, guide: Guide, content: str) -> str:
    info: dict[str, Any] = config_to_dict(config)
    kept = {name: info[name] for name in ("clips", "split", "subset", "views", "seed")}
    key = [kept, chosen.modality, chosen.layer, chosen.cached_views, guide.fingerprint, content]
    return json.dumps(key if guide.transform is None else [*key, str(guide.transform)])


def _log_start(
    components: TrainComponents, config: TrainConfig, train_state: TrainState, folder: Path, dist: DistributedContext
) -> None:
    info: dict[str, Any] = {"device": str(dist.device), "processes": dist.world_size, "from_step": train_state.step}
    info["precision"] = config.precision
    info["workers"] = resolve_workers(config.runtime.workers, dist.device)  # per process
    if dist.device.type == "cuda":
        info["gpu"] = torch.cuda.get_device_name(dist.device)
    log_environment(folder, info)
    begin = "resuming at" if train_state.step else "starting at"
    logger.info(
        "%s, %d videos, %s; %s epoch %d, batch %d, in %s on %s; everything is in %s",
        components.metadata.trained,
        len(components.data.views),
        components.init_description,
        begin,
        train_state.epoch,
        train_state.batch,
        config.precision,
        dist.device,
        folder,
    )
    for guide in components.guides:
        logger.info("guided by %s", guide.description)
    batch_size, videos = config.batch_size, len(components.data.views) * config.repeat
    if videos % batch_size:
        logger.info("%d of %d videos, others every epoch, fill no batch of %d", videos % batch_size, videos, batch_size)
    if components.banks is not None:
        missing = make_step_config(config).bank_warmup - len(components.banks.main)
        if missing > 0:
            first = train_state.step + -(-missing // batch_size)
            logger.info(
                "bank %d/%d: the loss starts at step %d, when it is filled",
                len(components.banks.main),
                make_step_config(config).bank_warmup,
                first,
            )


def _without_step(line: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the last line of metrics.jsonl as `latest_metrics` has it: the step is in the summary's progress."""
    return line and {name: value for name, value in line.items() if name != "step"}


def _write_summary(run: Run, folder: Path, status: str) -> None:
    if status == "stopped":
        logger.info("stopped at step %d and saved; the same command resumes", run.train_state.step)
        return
    summary = {
        "trained": run.components.metadata.trained,
        "init": run.config.init,
        "progress": asdict(run.train_state),
        "last": run.latest_metrics or _without_step(last_metrics(folder / "metrics.jsonl")),
        "guides": {
            guide.column: {"description": guide.description, "sha256": guide.fingerprint}
            for guide in run.components.guides
        },
        "checkpoint": str(run.checkpoints.last.relative_to(folder)),
    }
    if run.latest_metrics or not (folder / "summary.json").is_file():
        write_text_atomic(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    logger.info("finished: %s", run.checkpoints.last)
