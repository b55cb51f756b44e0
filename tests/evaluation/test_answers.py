"""Answers of networks: the file gives back what was written and is verified; runs are paired by split, seed, video."""

from pathlib import Path

import numpy as np
import pytest

from covid_cmsf.evaluation.answers import Answers, SeedAnswers, load_answers, pair_runs, save_answers
from covid_cmsf.evaluation.probes.linear import evaluate_linear, measure_linear
from covid_cmsf.evaluation.retrieval import evaluate_retrieval, measure_retrieval
from covid_cmsf.verified_files import write_tensors
from tests.evaluation.factories import synthetic_features


def answers(**hits: bool) -> Answers:
    """Answers to one metric; a video's source is its first letter."""
    return Answers({name: name[0] for name in hits}, {"R@1": dict(hits)})


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    features = synthetic_features(noise=2.0)
    (retrieval, hits), (linear, predicted) = measure_retrieval(features), measure_linear(features)
    assert (retrieval, linear) == (evaluate_retrieval(features), evaluate_linear(features))
    written = Answers.from_hits({"R@1": hits[1], "linear": predicted})
    assert written.score("R@1") == pytest.approx(retrieval.recall[1])
    assert written.score("linear") == pytest.approx(linear.scores.top1)
    skipped = next(iter(written.sources))
    del written.hits["linear"][skipped]  # it could not be read for the probe
    save_answers(tmp_path / "answers", written)
    assert load_answers(tmp_path / "answers") == written
    assert (tmp_path / "answers").stat().st_size < 4000


def test_damaged_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    save_answers(path, answers(a1=True, a2=False))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="damaged safetensors file.*writes it again if it is deleted"):
        load_answers(path)
    write_tensors(path, {}, metadata={})
    with pytest.raises(ValueError, match="not one of answers"):
        load_answers(path)


def test_runs_are_paired_by_split_seed_and_video() -> None:
    first = {
        "1": [SeedAnswers(0, answers(a1=True, a2=False, b1=False)), SeedAnswers(1, answers(a1=True, a2=True, b1=True))],
        "2": [SeedAnswers(1, answers(c1=False, d1=True))],
    }
    second = {
        "1": [SeedAnswers(1, answers(b1=False, a1=True)), SeedAnswers(0, answers(a1=False, a2=True, b1=True))],
        "2": [SeedAnswers(1, answers(d1=False, c1=True)), SeedAnswers(0, answers(d1=True, c1=True))],
        "3": [SeedAnswers(1, answers(e1=True))],
    }
    one, two = pair_runs(first, second, "R@1")  # seed 1 only: split 2 lacks the other
    assert list(one.sources) == ["a", "b"] and list(two.sources) == ["c", "d"]
    assert np.array_equal(one.first, [[True, True]]) and np.array_equal(one.second, [[True, False]])
    assert np.array_equal(two.first, [[False, True]]) and np.array_equal(two.second, [[True, False]])
    (both,) = pair_runs({"1": first["1"]}, {"1": second["1"]}, "R@1")
    assert np.array_equal(both.first, [[True, False], [True, True]])  # a2 is not in all runs
    assert np.array_equal(both.second, [[False, True], [True, False]])
    assert pair_runs({"1": first["1"]}, {"2": second["2"]}, "R@1") == []
    assert pair_runs({"1": first["1"][:1]}, {"1": second["1"][:1]}, "R@1") == []
    with pytest.raises(ValueError, match="no video in common"):
        pair_runs({"1": first["1"][:1]}, {"1": [SeedAnswers(0, answers(z1=True))]}, "R@1")
