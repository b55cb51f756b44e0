"""What can be known before a run starts is said before, in one line each, and nothing is written."""

import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.decoded import frames_path
from covid_cmsf.clips.records import FlowInfo
from covid_cmsf.models import EncoderMetadata, create_model, save_encoder
from covid_cmsf.preflight import PreflightError, Problem, check_disk, check_memory, raise_problems
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.dry_run import dry_run
from covid_cmsf.training.footprint import sample_bytes
from covid_cmsf.training.preflight import check_training
from covid_cmsf.training.run import run_training
from covid_cmsf.training.weights_preflight import TrainedOn, check_weights
from covid_cmsf.views.batch import DeferredViews
from covid_cmsf.views.dataset import ViewDataset
from covid_cmsf.views.loader import ViewLoader
from tests.factories import make_table_store
from tests.training.factories import make_config

# A run: 21 videos in batches of 4, 2 epochs of 5 steps, which push 40 entries.


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_table_store(tmp_path_factory.mktemp("store") / "clips")


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A flow network trained on the views of these runs, without a head."""
    return save_network(tmp_path_factory.mktemp("guide") / "flow.safetensors")


def save_network(path: Path, *, modality: str = "flow", size: int = 32, length: int = 8, stride: int = 1) -> str:
    channels = 2 if modality == "flow" else 3
    metadata = EncoderMetadata(
        encoder="s3d_tiny",
        in_channels=channels,
        input_size=(length, size, size),
        stride=stride,
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
        modality=modality,
        bn_eps=1e-5,
    )
    save_encoder(path, create_model("s3d_tiny", in_channels=channels), metadata)
    return str(path)


def errors(config: TrainConfig, **options: Any) -> list[str]:
    return [one.message for one in check_training(config, **options) if one.severity == "error"]


def warnings(config: TrainConfig) -> list[str]:
    assert not errors(config)
    return [one.message for one in check_training(config)]


def guided(clips: Path, weights: str, method: dict[str, Any] | None = None, **changes: Any) -> TrainConfig:
    method = {"name": "cmsf", "bank_size": 16, "num_candidates": 4, "k": 2, **(method or {})}
    guides = [{"weights": weights, "modality": "flow", "layer": "encoder", **changes.pop("guide", {})}]
    return make_config(clips, method=method, guides=guides, **changes)


def test_a_sound_run_has_no_problem(store: Path, guide: str) -> None:
    assert not check_training(make_config(store)) and not check_training(guided(store, guide))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clips": "nowhere"}, "no clips at nowhere: name them with --clips CLIPS"),
        ({"split": "2"}, "no split '2'; these clips have splits: 1"),
        ({"subset": "val"}, "no video in subset 'val' of split '1'; it has: test, train"),
        ({"encoder": "s3dd"}, "unknown encoder 's3dd'"),
        ({"encoder": "s3d_tiny", "views": {"size": 8}}, "too small for s3d_tiny"),
        ({"runtime": {"device": "gpu"}}, "unknown device 'gpu'"),
        ({"batch_size": 22, "method": {"name": "xent"}}, "21 videos do not fill one batch of 22"),
        ({"optimizer": {"accumulate": 6}}, "an epoch has 5 batches, fewer than optimizer.accumulate = 6"),
        ({"init": "gone.pt"}, "init: no run folder or weights file gone.pt; train that run first"),
        ({"views": {"length": 30}}, "a clip spans 30 frames (length 30, stride 1), and the longest of 21"),
        ({"labels": {"file": "gone.txt"}}, "gone.txt"),
        ({"method": {"name": "msf", "k": 17, "bank_size": 16}}, "method.k=17 neighbors cannot be chosen among"),
        (
            {"method": {"name": "cmsf_2q", "k": 6, "num_candidates": 5, "bank_size": 16}},
            "method.k=6 neighbors cannot be chosen among method.num_candidates (n)=5",
        ),
        ({"method": {"name": "infonce", "bank_size": 10**13}}, "entries of the memory bank (method.bank_size) need"),
    ],
)
def test_what_does_not_fit_the_data_is_one_line(store: Path, changes: dict[str, Any], message: str) -> None:
    changes = {**changes}
    config = make_config(Path(changes.pop("clips", store)), **changes)
    assert [message in line and "\n" not in line for line in errors(config)] == [True]


def test_labels_are_needed_where_a_method_learns_from_them(tmp_path: Path, guide: str) -> None:
    clips = make_table_store(tmp_path / "clips", labeled=False)
    method = {"name": "cmsf", "constraint": "label", "bank_size": 16}
    assert errors(make_config(clips, method=method)) == [f"cmsf learns from labels, and {clips} has none"]
    assert not errors(make_config(clips)) and not errors(guided(clips, guide))


def test_modalities_must_be_in_the_store(tmp_path: Path, guide: str) -> None:
    clips = make_table_store(tmp_path / "clips", modalities=("rgb",))
    for config in (make_config(clips, modality="flow"), guided(clips, guide)):
        (line,) = errors(config)
        assert f"{clips} has no flow, which modality flow needs (it has rgb)" in line
    assert not errors(make_config(clips, modality="rgbdiff"))


# Newcomer 1: CMSF "finished" with weights unchanged to the last bit.


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"bank_size": 44, "bank_warmup": "full"}, "cmsf trains nothing before the bank has 44 entries"),
        ({"bank_size": 99, "bank_warmup": 41}, "cmsf trains nothing before the bank has 41 entries"),
    ],
)
def test_a_bank_that_never_fills_is_refused(store: Path, guide: str, method: dict[str, Any], message: str) -> None:
    (line,) = errors(guided(store, guide, method))
    assert message in line and "the run of 2 epochs pushes 40: set a smaller method.bank_size" in line
    assert not errors(guided(store, guide, method, schedule={"epochs": 200}))


def test_coclr_must_have_a_full_bank_to_mine_from(store: Path, guide: str) -> None:
    method = {"name": "coclr", "bank_size": 44, "bank_warmup": 0}
    guides = [{"weights": guide, "modality": "flow", "layer": "encoder"}]
    (line,) = errors(make_config(store, method=method, guides=guides))
    assert "coclr mines no positive before the bank has 44 entries" in line


def test_the_last_step_of_a_run_may_be_its_first_that_trains(store: Path, guide: str) -> None:
    """Mean shift pushes before the loss, InfoNCE after it: with 40 of 40 entries one trains a step, the other none."""
    assert not errors(guided(store, guide, {"bank_size": 40, "bank_warmup": "full"}))
    infonce = {"name": "infonce", "bank_size": 40, "bank_warmup": "full"}
    assert "trains nothing" in errors(make_config(store, method=infonce))[0]
    assert not errors(make_config(store, method={**infonce, "bank_size": 36}))


def test_a_bank_that_takes_more_than_a_tenth_of_the_run_is_a_warning(store: Path, guide: str) -> None:
    method = {"bank_size": 20, "bank_warmup": "full"}
    (line,) = warnings(guided(store, guide, method))
    assert "50% of the run fills the bank, before cmsf trains" in line and "--epochs 10" in line
    assert not warnings(guided(store, guide, method, schedule={"epochs": 10}))
    (line,) = warnings(make_config(store, method={"name": "infonce", "bank_size": 64}))
    assert "the bank has 64 entries" in line and "it is never full" in line


# Newcomer 7.


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"k": 10, "num_candidates": 3}, "method.k=10 neighbors cannot be chosen among method.num_candidates (n)=3"),
        ({"num_candidates": 20}, "method.num_candidates=20 (n) is more than method.bank_size=16"),
    ],
)
def test_k_n_and_the_bank_are_in_order(store: Path, guide: str, method: dict[str, Any], message: str) -> None:
    assert errors(guided(store, guide, method)) == [message]
    assert not errors(guided(store, guide, {"k": 4, "num_candidates": 4, "bank_size": 16}))
    assert not errors(guided(store, guide, {"k": "all"}))


# Newcomer 5.


def test_a_guide_sees_the_views_that_it_was_trained_on(store: Path, tmp_path: Path) -> None:
    other = save_network(tmp_path / "other.safetensors", length=4, stride=4, size=36)
    (line,) = errors(guided(store, other))
    assert "was trained on 4 frames with stride 4 at 36 pixels, and would see 8 frames with stride 1 at 32" in line
    assert line.endswith("guides.0.allow_other_views=true")
    assert not errors(guided(store, other, guide={"allow_other_views": True}))


def test_a_guide_sees_the_modality_that_it_was_trained_on(store: Path, tmp_path: Path) -> None:
    rgb = save_network(tmp_path / "rgb.safetensors", modality="rgb")
    assert "takes 3 channels (trained on rgb), and flow has 2" in errors(guided(store, rgb))[0]
    other = save_network(tmp_path / "diff.safetensors", modality="rgbdiff")
    assert "was trained on rgbdiff, not on rgb" in errors(guided(store, other, guide={"modality": "rgb"}))[0]


def test_a_guide_must_exist_and_have_the_layer(store: Path, guide: str) -> None:
    assert "guides.0: no run folder or weights file gone.pt; train the guide" in errors(guided(store, "gone.pt"))[0]
    assert "has no projection head" in errors(guided(store, guide, guide={"layer": "projector"}))[0]


def test_init_is_a_network_for_this_modality(store: Path, guide: str) -> None:
    (line,) = errors(make_config(store, init=guide))
    assert "is a network for flow (2 channels), and this run is on rgb (3 channels)" in line
    assert not errors(make_config(store, init=guide, modality="flow"))


def test_flow_of_another_algorithm_is_refused_for_a_guide_and_told_for_init(store: Path) -> None:
    tvl1, dis = (
        FlowInfo(algorithm=name, backend=name, version="", parameters={}, bound=20) for name in ("tvl1", "dis")
    )
    view = (8, 1, 32)

    def planned(flow: FlowInfo | None) -> dict[str, TrainedOn]:
        return {"flow.pt": TrainedOn("flow", 2, view, flow)}

    config = guided(store, "flow.pt")
    (line,) = errors(config, planned=planned(dis))
    assert "guides.0: flow.pt was trained on flow by dis, and " in line and "has flow by tvl1; compute it as it" in line
    assert not errors(config, planned=planned(tvl1)) and not errors(config, planned=planned(None))
    assert not errors(guided(store, "flow.pt", guide={"allow_other_views": True}), planned=planned(dis))
    start = make_config(store, init="flow.pt", modality="flow")
    (told,) = (one for one in check_training(start, planned=planned(dis)) if one.message.startswith("init: "))
    assert told.severity == "warning" and "was trained on flow by dis" in told.message


def test_init_of_another_kind_is_found_although_it_has_as_many_channels(store: Path) -> None:
    planned = {"flow.pt": TrainedOn("flow", 3, None), "rgb.pt": TrainedOn("rgb", 3, None)}  # CoCLR's flow is an image
    config = make_config(store, init="flow.pt")
    (problem,) = check_weights(config, planned)
    assert "flow.pt is a network for flow (3 channels), and this run is on rgb" in problem.message
    assert not check_weights(make_config(store, init="rgb.pt"), planned)


def test_short_videos_are_a_warning_unless_all_are(store: Path, tmp_path: Path) -> None:
    config = make_config(store, views={"length": 30, "pad_mode": "loop"})
    assert "21 of 21 videos are shorter: their frames are looped" in warnings(config)[0]
    mixed = make_table_store(tmp_path / "mixed", num_frames=9)
    text = (mixed / "manifest.csv").read_text().replace(",9,8,", ",5,4,", 20)
    (mixed / "manifest.csv").write_text(text)
    (line,) = warnings(make_config(mixed))
    assert "videos are shorter: their first frame is repeated" in line


# Space, and how problems are told.


def test_checkpoints_need_disk_space(store: Path, tmp_path: Path) -> None:
    runtime = {"keep_every_epochs": 1, "keep": 10**9}
    config = make_config(store, runtime=runtime, schedule={"epochs": 10**9})
    (line,) = errors(config, folder=tmp_path / "not" / "yet")
    assert "the run's checkpoints need about" in line and str(tmp_path) in line and not (tmp_path / "not").exists()
    assert not errors(make_config(store), folder=tmp_path)
    free = shutil.disk_usage(tmp_path).free
    assert check_disk(tmp_path, 2 * free, "features") and not check_disk(tmp_path, 0.5 * free, "features")


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        ("torchcodec", "decoder 'torchcodec' cannot be loaded .*pip install torchcodec"),
        ("decord", "decoder 'decord' is not installed: pip install decord"),
        ("opencv", "unknown decoder 'opencv'; choose from auto, av, decord, torchcodec"),
    ],
)
def test_a_decoder_that_is_missing_is_refused_at_once(
    store: Path, decoder: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    monkeypatch.setattr("covid_cmsf.clips.decoders.find_spec", lambda name: None)
    (line,) = errors(make_config(store, runtime={"decoder": decoder}))
    assert re.match(message, line), line
    assert not errors(make_config(store, runtime={"decoder": "av"}))


def test_cached_clips_count_no_more_than_there_is_to_cache(store: Path) -> None:
    assert not errors(make_config(store, runtime={"cache_gb": 10**6}))  # 21 small videos
    assert check_memory(1e18, "clips")[0].message.startswith("clips need about 1000000.0 TB of memory, and")


def test_decoded_clips_need_disk_space(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(store, runtime={"cache_dir": str(tmp_path / "decoded")})
    assert not errors(config)
    decoded = 21 * 20 * 64 * 48 * 3  # videos, frames, pixels
    with monkeypatch.context() as patch:
        patch.setattr("covid_cmsf.preflight.shutil.disk_usage", lambda path: SimpleNamespace(free=decoded - 1))
        (line,) = errors(config)
        assert "the decoded clips (runtime.cache_dir) need about 3.9 MB" in line and not (tmp_path / "decoded").exists()
        (tmp_path / "decoded").mkdir()
        (tmp_path / "decoded" / "rgb-of-other-clips.u8").write_bytes(b"12")
        assert len(errors(config)) == 1, "frames of other clips are no part of these"
        clips = open_clips(store)
        path = frames_path(tmp_path / "decoded", clips, clips.select("1", "train"), "rgb")
        path.write_bytes(b"12")
        assert not errors(config), "what is there already needs no more space"
    with monkeypatch.context() as patch:
        patch.setattr("covid_cmsf.clips.decoded.files_fingerprint", lambda *_: "")
        (line,) = errors(config)
        assert "runtime.cache_dir is for clips in files" in line
    with pytest.raises(ValueError, match="set one of them"):
        make_config(store, runtime={"cache_dir": "x", "cache_gb": 1})


@pytest.mark.parametrize("modality", ["rgb", "flow", "rgbdiff", "frame"])
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("size", [32, 24])  # frames of 64 x 48 are three views of 32 pixels, more than three of 24
def test_the_bytes_of_a_batch_are_known_before(
    clips: Path, flow_weights: Path, modality: str, deferred: bool, size: int
) -> None:
    method, guides = {"name": "cmsf", "bank_size": 16}, [{"weights": str(flow_weights), "modality": "flow"}]
    views = {"size": size, "frame_size": size, "length": 4}
    config = make_config(clips, modality=modality, method=method, guides=guides, views=views)
    store = open_clips(str(clips))
    largest = max(record.width * record.height for record in store.records)
    online, target = [modality], [*dict.fromkeys([modality, "flow"])]
    shown = config.views.model_copy(update={"modalities": tuple(target)})
    data = ViewDataset(store, store.records, shown, defer=deferred, online=online, target=target)
    batch = next(ViewLoader(data, batch_size=2).epoch(0))
    tensors = [view for pair in batch.views for view in pair.values()]
    tensors += [one.frames for one in batch.deferred.values() if isinstance(one, DeferredViews)]
    true_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert true_bytes == 2 * sample_bytes(config, frame_pixels=largest, deferred=deferred)


def test_batches_in_flight_must_fit_into_shared_memory(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = 4 * 2 * 3 * 8 * 32 * 32 * 4  # samples, views, channels, frames, pixels, float32
    free = 3 * batch  # two in preparation, one in use
    monkeypatch.setattr(shutil, "disk_usage", lambda path: mock.Mock(free=free))
    for workers in (0, 1, 3, 4):  # they share the work on a batch
        assert not errors(make_config(store, runtime={"workers": workers}))
    (line,) = errors(make_config(store, runtime={"workers": 6}))  # two of them work on further batches
    for words in ("6 workers", "4 batches of 4", "/dev/shm", "--shm-size 1g", "runtime.workers", "batch_size"):
        assert words in line
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # two processes with half of the batch each
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not errors(make_config(store, runtime={"workers": 2}))
    assert errors(make_config(store, runtime={"workers": 4}))


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    config = guided(tmp_path / "nowhere", "gone.pt", {"k": 10, "num_candidates": 3})
    for start in (lambda: run_training(config, tmp_path / "run"), lambda: dry_run(config)):
        with pytest.raises(PreflightError) as caught:
            start()
        lines = str(caught.value).splitlines()
        assert lines[0] == "3 problems, nothing was started:" and len(lines) == 4
    assert not (tmp_path / "run").exists()


def test_the_same_problem_of_many_stages_is_one_line() -> None:
    problems = [Problem("a", stage=f"s{number}") for number in range(12)]
    problems += [Problem("b", stage="s1"), Problem("b", stage="s2"), Problem("c")]
    with pytest.raises(PreflightError) as caught:
        raise_problems(problems)
    assert str(caught.value).splitlines()[1:] == ["  12 stages: a", "  stages s1, s2: b", "  c"]
    raise_problems([Problem("only a warning", "warning")])
