"""Right and wrong answers of a stage, kept with its evaluation: what gains over other stages are computed from."""

import logging
from pathlib import Path
from typing import Any

from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.linear import FOLDER
from covid_cmsf.evaluation.answers import Answers, load_answers, save_answers
from covid_cmsf.evaluation.features.file import load_features, load_probabilities
from covid_cmsf.evaluation.finetune.run import PROBABILITIES
from covid_cmsf.evaluation.probes.linear import PROBES, measure_linear
from covid_cmsf.evaluation.results import VideoHits, top1_hits
from covid_cmsf.evaluation.retrieval import measure_retrieval
from covid_cmsf.exit_codes import USER_ERRORS

logger = logging.getLogger(__name__)
ANSWERS_FILE = "answers.safetensors"
FEATURES_FILE = "features.safetensors"
METRICS = {"r1": "R@1", "linear": "linear"}  # of a stage's result: of its answers
RANKS = (1, 5, 10)
TOLERANCE = 1e-6  # percent, between the score of a result and that of its answers


def write_answers(folder: Path, retrieval: dict[int, VideoHits], linear: VideoHits) -> None:
    """Store which query videos a stage answered correctly, in R@k and by its linear probe."""
    hits = {f"R@{k}": retrieval[k] for k in RANKS if k in retrieval}
    save_answers(folder / ANSWERS_FILE, Answers.from_hits({**hits, METRICS["linear"]: linear}))


def read_answers(folder: Path, result: dict[str, Any]) -> Answers | None:
    """Return the answers behind a stage's result; None if there are none, or they are damaged or of another result."""
    path = folder / ANSWERS_FILE
    if not path.is_file():
        return None
    try:
        answers = load_answers(path)
    except USER_ERRORS as error:
        logger.warning("%s", error)
        return None
    return answers if _fits(answers, result) else None


def complete_answers(stage: Stage, result: dict[str, Any]) -> Answers | None:
    """Return the stage's answers; those that an older version did not keep are computed from its features.

    None, and a warning, if that does not give the stored result: then the stage has to be measured again.
    """
    answers = read_answers(stage.folder, result)
    if answers is not None or result.get("r1") is None:
        return answers
    try:
        computed = _compute(stage)
    except USER_ERRORS as error:
        logger.warning("stage %s: %s", stage.name, error)
        computed = None
    if computed is not None and _fits(computed, result):
        save_answers(stage.folder / ANSWERS_FILE, computed)
        return computed
    logger.warning(
        "stage %s has no gains: its answers were not kept by the version that measured it; delete %s and run the plan "
        "again, which measures it without training",
        stage.name,
        stage.folder / "stage.json",
    )
    return None


def _compute(stage: Stage) -> Answers | None:
    """Measure the stored features again; None if there are none, or the linear accuracy was not measured on them."""
    evaluation, path = stage.evaluation, stage.folder / FEATURES_FILE
    if not path.is_file():
        return None
    features = load_features(path)
    subsets: dict[str, Any] = {"gallery": evaluation.gallery, "query": evaluation.query}
    subsets["allow_shared_sources"] = evaluation.allow_shared_sources
    if evaluation.probe in PROBES:
        linear = measure_linear(features, **subsets, probe=evaluation.probe)[1]
    elif (stage.folder / FOLDER / PROBABILITIES).is_file():
        stored = load_probabilities(stage.folder / FOLDER / PROBABILITIES)
        linear = top1_hits(stored.probabilities, stored.videos)
    else:
        return None
    hits = {f"R@{k}": one for k, one in measure_retrieval(features, **subsets)[1].items() if k in RANKS}
    return Answers.from_hits({**hits, METRICS["linear"]: linear})


def _fits(answers: Answers, result: dict[str, Any]) -> bool:
    return all(
        metric in answers.hits and abs(answers.score(metric) - result[name]) < TOLERANCE
        for name, metric in METRICS.items()
        if result.get(name) is not None
    )
