"""The column "Linear" of a plan: a probe on stored features, one on augmented images, or pre-training's classifier."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.base import Clips
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.evaluation.features.file import Features, load_probabilities
from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION, subset_indices
from covid_cmsf.evaluation.finetune.config import FinetuneConfig, finetune_config
from covid_cmsf.evaluation.finetune.process_group import num_sharing
from covid_cmsf.evaluation.finetune.run import PROBABILITIES, FinetuneResult, run_finetune
from covid_cmsf.evaluation.probes.linear import LinearResult, measure_linear
from covid_cmsf.evaluation.probes.pretrained import evaluate_classifier, load_classifier
from covid_cmsf.evaluation.results import VideoHits, top1_hits

FOLDER = "linear"  # of the probe on augmented images: checkpoint and probabilities


def stage_linear(
    stage: Stage,
    eval_model: EvalModel,
    features: Features,
    clips: Clips,
    *,
    eval_protocol: EvalProtocol,
    num_workers: int,
    devices: Sequence[torch.device],
    **subsets: Any,
) -> tuple[LinearResult, VideoHits]:
    """Return the linear accuracy of a stage by its `probe`, and which videos it predicts correctly.

    `subsets` are options of `measure_linear`.
    """
    probe = stage.evaluation.probe
    if probe in ("protocol", "compress"):
        return measure_linear(features, **subsets, probe=probe)
    split, query = stage.evaluation.split or stage.split, subsets["query"]
    shared: dict[str, Any] = {"eval_protocol": eval_protocol, "split": split, "query": query}
    shared |= {"num_workers": num_workers, "allow_shared_sources": subsets["allow_shared_sources"]}
    if probe == "classifier":
        network = load_classifier(Path(stage.checkpoint), branch=stage.spec.branch)
        trained_on = None if stage.config is None else open_clips(stage.config.clips)
        return evaluate_classifier(network, clips, **shared, device=devices[0], trained_on=trained_on)
    config = finetune_config("compress")
    num_train = len(subset_indices(features.videos, subsets["gallery"], val_fraction=VAL_FRACTION, seed=config.seed))
    # CompRess's batch of 256, or all images where there are fewer.
    config = config.model_copy(update={"batch_size": min(config.batch_size, num_train)})
    shared["device"] = devices[: num_sharing(config.batch_size, len(devices))]
    result = _train_on_augmented(eval_model, clips, stage.folder / FOLDER, config, shared)
    predicted = load_probabilities(stage.folder / FOLDER / PROBABILITIES)
    linear = LinearResult(
        protocol=result.protocol,
        gallery=subsets["gallery"],
        query=query,
        num_gallery=result.num_fit,
        scores=result.scores,
        overlap=result.overlap,
        probe="compress_augmented",
    )
    return linear, top1_hits(predicted.probabilities, predicted.videos)


def _train_on_augmented(
    eval_model: EvalModel, clips: Clips, folder: Path, config: FinetuneConfig, options: dict[str, Any]
) -> FinetuneResult:
    """Train CompRess's probe on augmented images. A killed training resumes; one with other settings is replaced."""
    try:
        return run_finetune(eval_model, clips, folder, config, **options)
    except FileExistsError:
        return run_finetune(eval_model, clips, folder, config, **options, replace=True)
