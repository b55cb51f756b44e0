"""The size of a plan: anchors, limits over all numbers of videos, and the real preflight."""

from dataclasses import replace
from pathlib import Path

import pytest

from covid_cmsf.clips.sampling import clip_span
from covid_cmsf.cotrain.graph import build_graph
from covid_cmsf.cotrain.run import load_plan, prepare_plan
from covid_cmsf.projects.estimate import (
    BudgetError,
    ProjectEstimate,
    StepSeconds,
    fit_plan,
    parse_time,
    training_seconds,
)
from covid_cmsf.projects.plan_file import plan_text
from covid_cmsf.projects.planning import Measurements, set_budget
from covid_cmsf.projects.sizes import Footage, Machine, PlanSize, shorten, size_plan
from covid_cmsf.projects.state import State
from covid_cmsf.training.preflight import check_neighbors, check_schedule
from tests.factories import make_table_store

COUNTS = [16, 17, 24, 31, 32, 40, 63, 64, 100, 108, 300, 759, 760, 2_000, 9_537, 50_000, 240_000, 1_000_000]
CPU, GPU = Machine("cpu", 16.0, 2), Machine("cuda", 24.0, 8)
UCF = Footage(760, 100, 170)
TEN = Footage(456, 100, 170)  # the training clips of real/ucf101-ten, split 3
ROOT = Path(__file__).resolve().parents[2]


def write_plan(folder: Path, size: PlanSize, footage: Footage) -> Path:
    path = folder / "plan.yaml"
    path.write_text(plan_text(size, footage, seed=3, device="cpu", clips="trained-on", runs="runs"), encoding="utf-8")
    return path


def test_on_a_cpu_ten_classes_of_ucf101_have_the_recipe_that_was_measured(tmp_path: Path) -> None:
    written = load_plan(write_plan(tmp_path, size_plan(TEN, CPU), TEN), ["defaults.clips=none"])
    measured = load_plan(ROOT / "configs/plans/real/ucf101-ten.yaml", ["modalities=[rgb,flow]"])
    ours, theirs = (
        {stage.name: stage.config for stage in build_graph(plan, tmp_path / "runs", plan_dir=tmp_path)}
        for plan in (written, measured)
    )
    assert len(ours) == 4 and ours.keys() <= theirs.keys()
    for name, config in ours.items():
        other = theirs[name]
        assert config is not None and other is not None
        for part in ("encoder", "views", "batch_size", "repeat", "optimizer", "schedule", "method", "batch_norm"):
            assert getattr(config, part) == getattr(other, part), (name, part)


def test_on_a_gpu_ucf101_has_the_size_of_the_paper() -> None:
    size = size_plan(replace(UCF, num_videos=9_537), Machine("cuda", 48.0, 8))
    assert (size.encoder, size.length, size.stride, size.size, size.batch_size) == ("s3d", 32, 1, 128, 64)
    assert (size.pretrain_epochs, size.cmsf_epochs, size.num_candidates, size.k) == (400, 100, 10, 5)


@pytest.mark.parametrize("machine", [CPU, GPU, Machine("cuda", 8.0, 4)], ids=["cpu", "gpu", "small gpu"])
@pytest.mark.parametrize("num_videos", COUNTS)
def test_every_plan_passes_the_preflight_and_has_a_sensible_number_of_steps(
    num_videos: int, machine: Machine, tmp_path: Path
) -> None:
    footage = replace(UCF, num_videos=num_videos)
    size = size_plan(footage, machine)
    plan = load_plan(write_plan(tmp_path, size, footage), ["defaults.clips=none"])
    stages = build_graph(plan, tmp_path / "runs", plan_dir=tmp_path)
    assert [stage.name for stage in stages] == (
        ["infonce-rgb", "infonce-flow", "cmsf-rgb-1", "cmsf-flow-1"]
        if machine.device == "cpu"
        else ["infonce-rgb", "infonce-flow", "cmsf-flow-1", "cmsf-rgb-1"]
    )
    for stage in stages:
        assert stage.config is not None and stage.seed == 3
        assert not check_neighbors(stage.config) + check_schedule(stage.config, num_videos)
        assert stage.config.batch_size <= num_videos
    steps = size.steps_per_epoch(num_videos) * size.pretrain_epochs
    assert 300 <= steps <= 250_000 and size.steps_per_epoch(num_videos) >= 7
    assert size.k <= size.num_candidates <= size.bank_size <= 8192


def test_more_videos_never_mean_fewer_steps() -> None:
    for machine in (CPU, GPU):
        sizes = [(count, size_plan(replace(UCF, num_videos=count), machine)) for count in (64, 300, 760, 5_000, 50_000)]
        steps = [size.steps_per_epoch(count) * size.pretrain_epochs for count, size in sizes]
        assert steps == sorted(steps)


@pytest.mark.parametrize("machine", [CPU, GPU])
@pytest.mark.parametrize(("frames", "fps"), [(8, 25.0), (20, 25.0), (60, 15.0), (300, 60.0), (90_000, 30.0)])
def test_a_clip_is_at_most_half_of_a_short_video(machine: Machine, frames: int, fps: float) -> None:
    size = size_plan(Footage(100, frames, 2 * frames, fps), machine)
    assert clip_span(size.length, size.stride) <= max(4, frames // 2)
    assert 4 <= size.windows <= 16


def test_a_faster_frame_rate_has_a_larger_stride() -> None:
    assert [size_plan(replace(UCF, fps=fps, short_frames=500), CPU).stride for fps in (12.5, 25.0, 50.0)] == [2, 4, 8]


def test_too_few_videos_are_refused() -> None:
    with pytest.raises(ValueError, match="15 videos: a plan needs at least 16"):
        size_plan(replace(UCF, num_videos=15), CPU)


def test_the_plan_of_a_small_store_passes_the_whole_preflight(tmp_path: Path) -> None:
    store = make_table_store(tmp_path / "clips", classes=1, train=20, test=0, num_frames=40, labeled=False)
    footage = Footage(20, 40, 40)
    plan = load_plan(write_plan(tmp_path, size_plan(footage, CPU), footage), [f"defaults.clips={store}"])
    _, graphs = prepare_plan(plan, tmp_path / "runs", plan_dir=tmp_path)
    assert len(graphs[0]) == 4


# Time


STEPS = StepSeconds(infonce={"rgb": 0.1, "flow": 0.08}, cmsf={"rgb": 0.12, "flow": 0.1}, video=0.02)


def test_the_time_of_a_plan_is_that_of_its_stages() -> None:
    size = size_plan(UCF, CPU)
    guides = 760 * 0.02 * 4 / size.windows
    stages = [11 * 77 * 0.1, 11 * 77 * 0.08, 11 * 70 * 0.12 + guides, 11 * 70 * 0.1 + guides]
    first, second, *rounds = [seconds + 760 * 0.02 for seconds in stages]
    assert training_seconds(size, UCF, STEPS) == pytest.approx(max(first, second) + sum(rounds))
    assert training_seconds(replace(size, parallel=1), UCF, STEPS) == pytest.approx(first + second + sum(rounds))


def test_a_budget_shortens_the_epochs_first_and_the_views_then() -> None:
    def measure(size: PlanSize) -> StepSeconds:
        factor = (size.size / 48) ** 2
        infonce, cmsf = ({name: factor * one for name, one in values.items()} for values in (STEPS.infonce, STEPS.cmsf))
        return StepSeconds(infonce, cmsf, STEPS.video)

    full = training_seconds(size_plan(UCF, CPU), UCF, STEPS)
    for share, expected in ((1.0, (77, 48)), (0.7, (None, 48)), (0.45, (None, 36))):
        size, seconds = fit_plan(UCF, CPU, share * full, measure)
        assert seconds <= share * full
        if expected is not None and expected[0] is not None:
            assert size.pretrain_epochs == expected[0]
        if expected is not None:
            assert size.size == expected[1]
        assert 0.4 * 77 <= size.pretrain_epochs <= 77
    with pytest.raises(BudgetError) as caught:
        fit_plan(UCF, CPU, 0.05 * full, measure)
    assert fit_plan(UCF, CPU, caught.value.seconds, measure)[1] == pytest.approx(caught.value.seconds)


def test_a_shortened_plan_still_fills_its_bank() -> None:
    for count in COUNTS:
        footage = replace(UCF, num_videos=count)
        size = shorten(size_plan(footage, CPU), footage, 0.4)
        assert size.cmsf_epochs * size.steps_per_epoch(count) * size.batch_size >= 10 * size.bank_size


class Measured(Measurements):
    """Known seconds instead of measured ones."""

    def __init__(self, step: float) -> None:
        self.footage = UCF
        self._step = step

    def steps(self, size: PlanSize) -> StepSeconds:
        return StepSeconds({"rgb": self._step, "flow": self._step}, {"rgb": self._step, "flow": self._step}, 0.0)

    def project(self, size: PlanSize) -> ProjectEstimate:
        return ProjectEstimate(3.0, 0.0, 1.0, 1.0, 0.0, size, self.footage)


@pytest.mark.parametrize("step", [0.01, 0.065, 0.13, 0.5])
def test_the_time_that_is_said_to_do_does(step: float) -> None:
    state = State(videos="videos", short_edge=60)
    with pytest.raises(ValueError, match="is too little") as caught:
        set_budget(state, Measured(step), CPU, 1.0)
    said = str(caught.value).split("--time ")[-1].split()[0]
    assert set_budget(state, Measured(step), CPU, parse_time(said)).time_seconds == parse_time(said)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("90s", 90), ("1.5h", 5400), (" 2H ", 7200)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "0m", "2 days", "-1h"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--time"):
        parse_time(text)
