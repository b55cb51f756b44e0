"""Wrong labels and few labels: as many as asked for, the same for a seed, and the same again from their files."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.clips import open_clips
from covid_cmsf.clips.labels import (
    corrupt_labels,
    labels_from_list,
    noisy_labels,
    read_noisy_labels,
    sample_labeled_fraction,
    write_labeled_list,
    write_noisy_labels,
)
from covid_cmsf.clips.records import ClipRecord
from tests.factories import make_image_folder

TRUE = np.array([0] * 40 + [1] * 20 + [2] * 10 + [-1] * 3)


def records(labels: "np.ndarray | list[int]", prefix: str = "train/") -> list[ClipRecord]:
    return [
        ClipRecord(f"{prefix}c{label}/img_{n:03d}.JPEG", "", f"c{label}", int(label), 1, 0, 0.0, 0, 0, "")
        for n, label in enumerate(labels)
    ]


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.25, 0.5])
def test_exactly_the_asked_share_of_every_class_is_wrong(rate: float) -> None:
    found = corrupt_labels(TRUE, rate=rate, seed=3, stratified=True)
    for label, count in ((0, 40), (1, 20), (2, 10)):
        mine = found[label == TRUE]
        assert (mine != label).sum() == round(rate * count) and set(mine.tolist()) <= {0, 1, 2}
    assert (found[TRUE == -1] == -1).all()


def test_without_strata_the_share_holds_for_all_together() -> None:
    found = corrupt_labels(TRUE, rate=0.5, seed=3, stratified=False)
    assert (found != TRUE).sum() == 35
    assert {int((found[label == TRUE] != label).sum()) for label in range(3)} != {20, 10, 5}


def test_wrong_labels_are_spread_evenly_over_the_other_classes() -> None:
    found = corrupt_labels(np.repeat(np.arange(4), 3000), rate=0.5, seed=0, stratified=True)
    for label in range(4):
        counts = np.bincount(found[label * 3000 : (label + 1) * 3000], minlength=4)
        assert counts[label] == 1500 and all(abs(c - 500) < 75 for i, c in enumerate(counts) if i != label)


def test_noise_follows_from_seed_and_names_alone() -> None:
    some = records(TRUE)
    first = noisy_labels(some, rate=0.5, seed=1)
    order = np.random.default_rng(0).permutation(len(some))
    assert (noisy_labels([some[i] for i in order], rate=0.5, seed=1) == first[order]).all()
    assert (noisy_labels(some, rate=0.5, seed=2) != first).any()


def test_what_is_wrong_at_a_low_rate_is_as_wrong_at_a_higher_one() -> None:
    low, high = (corrupt_labels(TRUE, rate=rate, seed=5, stratified=True) for rate in (0.25, 0.5))
    wrong = low != TRUE
    assert wrong.any() and (low[wrong] == high[wrong]).all()


def test_a_noisy_file_reads_back_and_knows_its_hash(tmp_path: Path) -> None:
    some = records(TRUE[:70])
    labels = noisy_labels(some, rate=0.5, seed=0)
    path = tmp_path / "corrupt_50percent.txt"
    digest = write_noisy_labels(path, some, labels, rate=0.5, seed=0)
    found = read_noisy_labels(path)
    assert found.sha256 == digest and list(found.labels) == sorted(found.labels)
    assert [found.labels[r.video_id.removeprefix("train/")] for r in some] == labels.tolist()
    about = json.loads((tmp_path / "corrupt_50percent.txt.json").read_text())
    assert about["true_labels"] == [int(name.split("/")[0][1:]) for name in found.labels]
    assert about["num_changed"] == 35 and about["rate"] == 0.5
    path.write_text(path.read_text().replace(" 1\n", " 2\n", 1))
    with pytest.raises(ValueError, match="its hash is not that in"):
        read_noisy_labels(path)


@pytest.mark.parametrize("text", ["a b\n", "name\n", "a -1\n", " 3\n", "\n"])
def test_broken_noisy_files_are_errors(tmp_path: Path, text: str) -> None:
    path = tmp_path / "labels.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match="line 1|no lines"):
        read_noisy_labels(path)
    with pytest.raises(FileNotFoundError, match="labels noise"):
        read_noisy_labels(tmp_path / "other.txt")


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_impossible_rates_are_errors(rate: float) -> None:
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        noisy_labels(records(TRUE), rate=rate, seed=0)
    with pytest.raises(ValueError, match="two classes"):
        noisy_labels(records([0, 0]), rate=0.5, seed=0)


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.5, 1.0])
def test_a_share_of_every_class_keeps_its_labels(fraction: float) -> None:
    kept_labels = sample_labeled_fraction(TRUE, fraction=fraction, seed=0)
    assert ((kept_labels == TRUE) | (kept_labels == -1)).all()
    for label, count in ((0, 40), (1, 20), (2, 10)):
        assert (kept_labels == label).sum() == max(1, round(fraction * count))


def test_hidden_labels_are_the_same_for_a_seed_and_others_for_another() -> None:
    first, again, other = (sample_labeled_fraction(TRUE, fraction=0.5, seed=seed).tolist() for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("prefix", ["train/", ""])
def test_a_list_of_labeled_images_reads_back(tmp_path: Path, prefix: str) -> None:
    some = records(TRUE[:70], prefix)
    kept_labels = sample_labeled_fraction(TRUE[:70], fraction=0.1, seed=0)
    write_labeled_list(tmp_path / "10percent.txt", some, kept_labels)
    lines = (tmp_path / "10percent.txt").read_text().split()
    assert len(lines) == 7 and all("/" not in line for line in lines)  # as the official lists
    assert labels_from_list(some, TRUE[:70], tmp_path / "10percent.txt").tolist() == kept_labels.tolist()


def test_lists_keep_folders_where_file_names_repeat(tmp_path: Path) -> None:
    some = [ClipRecord(f"train/c{i}/0.png", "", f"c{i}", i, 1, 0, 0.0, 0, 0, "") for i in range(4)]
    write_labeled_list(tmp_path / "list.txt", some, np.array([0, -1, 2, -1]))
    assert (tmp_path / "list.txt").read_text() == "c0/0.png\nc2/0.png\n"
    assert labels_from_list(some, np.arange(4), tmp_path / "list.txt").tolist() == [0, -1, 2, -1]


def test_lists_of_another_set_are_errors(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("other.JPEG\n")
    with pytest.raises(ValueError, match="none of the 1 names"):
        labels_from_list(records(TRUE), TRUE, tmp_path / "list.txt")
    with pytest.raises(FileNotFoundError, match="labels fraction"):
        labels_from_list(records(TRUE), TRUE, tmp_path / "nothing.txt")


def test_the_commands_write_both_kinds_of_file(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "set", train=10)
    run = CliRunner()
    noisy, few = tmp_path / "noisy.txt", tmp_path / "few.txt"
    done = run.invoke(app, ["labels", "noise", str(root), "--rate", "0.3", "--out", str(noisy)])
    assert done.exit_code == 0 and "30 images, 9 wrong labels" in done.output.replace("\n", " ")
    train = open_clips(root).select("1", "train")
    assert list(read_noisy_labels(noisy).labels.values()) == noisy_labels(train, rate=0.3, seed=0).tolist()
    done = run.invoke(app, ["labels", "fraction", str(root), "--fraction", "0.2", "--out", str(few)])
    assert done.exit_code == 0 and len(few.read_text().split()) == 6
