"""Checks before a classifier is trained on clips."""

from collections.abc import Sequence
from pathlib import Path

from covid_cmsf.clips.base import Clips
from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.evaluation.finetune.config import FinetuneConfig
from covid_cmsf.evaluation.finetune.subsets import choose_subsets
from covid_cmsf.evaluation.overlap import check_overlap
from covid_cmsf.evaluation.preflight import check_out_folder, check_protocol, split_table
from covid_cmsf.models import Encoder
from covid_cmsf.preflight import Problem, attempt

CHECKPOINT_COPIES = 5  # of the weights: best.pt, last.pt with two moments of Adam, and one file while it is written


def check_finetune(
    folder: Path | None,
    config: FinetuneConfig | None,
    eval_model: EvalModel | None,
    clips: Clips | None,
    eval_protocol: EvalProtocol | None,
    *,
    split: str | None,
    query: str,
    allow_shared_sources: bool,
    lrs: Sequence[float] = (),
    num_processes: int = 1,
) -> list[Problem]:
    """Check folder, clips, labels, subsets, batch size and space; what could not be opened is None, and left out."""
    weights = 0 if eval_model is None else sum(4 * one.numel() for one in eval_model.network.parameters())
    problems = [] if folder is None else check_out_folder(folder, CHECKPOINT_COPIES * weights, "the checkpoints")
    if config is not None and config.batch_size % num_processes:
        problems.append(
            Problem(
                f"a batch of {config.batch_size} does not divide among {num_processes} processes: --processes, or "
                "--batch-size"
            )
        )
    if len(lrs) > 1 and config is not None and config.val_fraction == 0:
        problems.append(Problem("a learning rate is chosen on validation videos: --val-fraction above 0, or one --lr"))
    if config is not None and config.mode == "attentive" and eval_model is not None and not _has_map(eval_model):
        problems.append(Problem("the attentive probe needs a feature map, which this network does not give"))
    if eval_protocol is not None and eval_protocol.resolve_modality().spectrogram:
        problems.append(
            Problem(
                "classifiers on clips are trained on pictures, not on sound: measure its features "
                "(`covid-cmsf extract`, then `covid-cmsf evaluate linear FILE`)"
            )
        )
    if clips is None:
        return problems
    if eval_protocol is not None:
        address = str(getattr(clips, "path", "this set of images"))
        problems += check_protocol(clips, eval_protocol, address=address, split=split, num_features=0, out=None)
    unusable: list[Problem] = []
    videos = attempt(unusable, lambda: split_table(clips, split))
    if videos is not None and config is not None:
        return problems + _check_videos(videos, config, query=query, allow_shared_sources=allow_shared_sources)
    return problems + [one for one in unusable if one not in problems]


def _has_map(eval_model: EvalModel) -> bool:
    network = eval_model.network
    return isinstance(network, Encoder) and type(network).forward_features is not Encoder.forward_features


def _check_videos(
    videos: VideoTable, config: FinetuneConfig, *, query: str, allow_shared_sources: bool
) -> list[Problem]:
    problems: list[Problem] = []
    subsets = attempt(problems, lambda: choose_subsets(videos, config, query=query))
    if subsets is None:
        return problems
    train, test = subsets.train_and_test_indices()
    options = {"names": ("train", query), "allow_shared_sources": allow_shared_sources, "warn": False}
    attempt(problems, lambda: check_overlap(videos, train, test, **options))  # type: ignore[arg-type]
    if len(set(videos.labels[train].tolist())) < 2:
        problems.append(Problem("all training videos have the same label; a classifier needs at least two classes"))
    if len(subsets.fit) < config.batch_size:
        problems.append(
            Problem(
                f"{len(subsets.fit)} training videos (without {len(subsets.val)} for validation) do not fill one batch "
                f"of {config.batch_size}: --batch-size {max(len(subsets.fit), 2)}"
            )
        )
    return problems
