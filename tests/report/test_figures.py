"""Figures 2 and 3 of the paper: the right images in the right rows, the right numbers on the curves, from files."""

import json
from collections.abc import Mapping
from pathlib import Path

import matplotlib.image
import pytest
import torch
import yaml
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.report.noise_figures import finished_stage_folders, read_points
from covid_cmsf.report.noisy_gallery import gallery_rows
from tests.factories import make_image_folder

N, D = 90, 6


def noisy_features(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[str]]:
    """Features near their true class's axis, labels of which a third are wrong, and names."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.arange(N) % 3
    features = torch.eye(D)[true] + 0.2 * torch.randn(N, D, generator=generator)
    seen = torch.where(torch.rand(N, generator=generator) < 0.33, (true + 1) % 3, true)
    return features, seen, true, [f"image{i}" for i in range(N)]


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_the_nearest_of_the_same_seen_label(seed: int) -> None:
    features, seen, true, names = noisy_features(seed)
    correct, wrong, drawn = gallery_rows(features, seen, true, names, num_neighbors=5, seed=seed)
    label = correct.neighbors[0].noisy_label
    for row in (correct, wrong):
        assert row.query is not None and row.query.noisy_label == label
        query = names.index(row.query.name)
        slow = []
        for i in range(N):
            if i != query and seen[i] == label:
                slow.append((-float(torch.cosine_similarity(features[i], features[query], dim=0)), names[i]))
        assert [one.name for one in row.neighbors] == [name for _, name in sorted(slow)[:5]]
        assert row.purity == sum(one.true_label == row.query.true_label for one in row.neighbors) / 5
    assert correct.query is not None and correct.query.true_label == label
    assert wrong.query is not None and wrong.query.true_label != label
    assert correct.purity == 1 and all(one.noisy_label == label and one.similarity is None for one in drawn.neighbors)
    assert len({one.name for one in drawn.neighbors}) == 5


def test_without_noise_there_is_nothing_to_show() -> None:
    features, _, true, names = noisy_features()
    with pytest.raises(ValueError, match="is there any noise"):
        gallery_rows(features, true, true, names)
    with pytest.raises(ValueError, match="label 7 has no correct image"):
        gallery_rows(features, true, true, names, label=7)


def stage(folder: Path, method: Mapping[str, object], noise: float, r1: float, linear: float) -> None:
    folder.mkdir(parents=True)
    (folder / "stage.json").write_text(json.dumps({"r1": r1, "linear": linear}))
    (folder / "config.yaml").write_text(yaml.safe_dump({"method": method, "labels": {"noise": noise}}))


def test_curves_have_the_mean_and_spread_of_the_seeds(tmp_path: Path) -> None:
    xent, top10 = {"name": "xent"}, {"name": "cmsf", "k": 10}
    for seed, shift in enumerate((0.0, 2.0, 4.0)):
        for noise in (0.0, 0.5):
            stage(tmp_path / f"seed-{seed}" / f"xent-{noise}", xent, noise, 50 + shift, 80 - 40 * noise + shift)
    stage(tmp_path / "seed-0" / "cmsf", top10, 0.5, 70.0, 75.0)
    (tmp_path / "seed-0" / "cmsf" / "transfer").mkdir()
    (tmp_path / "seed-0" / "cmsf" / "transfer" / "result.json").write_text('{"mean": 65.4}')
    (tmp_path / "seed-0" / "chance").mkdir()
    (tmp_path / "seed-0" / "chance" / "stage.json").write_text('{"r1": 10}')
    points = {(p.model, p.noise, p.metric): p for p in read_points(finished_stage_folders([tmp_path]))}
    assert points["Xent", 0.5, "linear"].mean == 62 and points["Xent", 0.5, "linear"].spread == 2
    assert points["CMSF top-10", 0.5, "transfer"].values == (65.4,) and len(points) == 7
    done = CliRunner().invoke(app, ["figures", "noise", str(tmp_path), "--out", str(tmp_path / "curves")])
    assert done.exit_code == 0, done.output
    assert matplotlib.image.imread(tmp_path / "curves.png").shape[0] > 300
    assert len(json.loads((tmp_path / "curves.json").read_text())) == 7 and (tmp_path / "curves.svg").stat().st_size


def test_folders_without_stages_are_errors(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["figures", "noise", str(tmp_path), "--out", str(tmp_path / "curves")])
    assert isinstance(done.exception, FileNotFoundError) and "no finished stage" in str(done.exception)


@pytest.mark.slow
def test_the_gallery_of_a_run_is_drawn_from_its_files(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "set", train=12)
    config = {
        "clips": str(root),
        "modality": "frame",
        "encoder": "r10_small",
        "method": {"name": "xent"},
        "views": {"frame_size": 16},
        "labels": {"noise": 0.4},
        "batch_size": 12,
        "schedule": {"epochs": 1},
        "runtime": {"device": "cpu", "workers": 0, "threads": 1, "tensorboard": False},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    run, out = tmp_path / "run", tmp_path / "gallery.png"
    steps = [
        ["train", tmp_path / "run.yaml", "--out", run],
        ["extract", run / "checkpoints" / "last.pt", root, "--out", run / "features.safetensors", "--workers", 0],
        ["figures", "neighbors", run, "--num-images", 4, "--out", out],
    ]
    for args in steps:
        done = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert "same true class: correct" in done.output.replace("\n", " ")
    picture = matplotlib.image.imread(out)
    assert picture.shape[0] > 300 and picture.shape[1] > 500
    rows = json.loads((tmp_path / "gallery.json").read_text())["rows"]
    assert [row["kind"] for row in rows] == ["correct", "wrong", "random"] and len(rows[0]["neighbors"]) == 4
