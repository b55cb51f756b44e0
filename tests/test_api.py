"""`import covid_cmsf as cc`: lazy, complete, and enough for a user's own loop."""

import ast
import doctest
import pkgutil
import subprocess
import sys
from io import StringIO
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml
from torch import nn

import covid_cmsf as cc
from covid_cmsf.clips.records import MOTION_VECTORS, FlowInfo
from covid_cmsf.methods.base import EmbeddedBatch
from covid_cmsf.methods.contrastive import CoCLR, InfoNCE, SupervisedContrastive
from covid_cmsf.methods.memory_bank import MemoryBanks
from covid_cmsf.search.build import index_features
from covid_cmsf.search.index import save_index
from tests.evaluation.factories import small_checkpoint, small_encoder, synthetic_features
from tests.factories import make_ucf, moving_square, write_video
from tests.preprocess.commands import preprocess

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ucf(tmp_path_factory.mktemp("videos"), classes=2, groups=12, num_frames=8)


@pytest.fixture(scope="module")
def store(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without loss: flow is stored to the last bit."""
    out = tmp_path_factory.mktemp("clips") / "ucf"
    finished = preprocess(videos, out, "--quality", "0")
    assert finished.returncode == 0, finished.stderr
    return out


RUN = """
encoder: s3d_tiny
modality: flow
method: {name: infonce, bank_size: 16}
views: {length: 5, size: 32}
batch_size: 4
runtime: {device: cpu, workers: 0, threads: 1, tensorboard: false}
"""


@pytest.fixture(scope="module")
def flow_run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "infonce-flow.yaml").write_text(RUN)
    changes = {"clips": str(store), "schedule.epochs": 1, "optimizer.lr": 1e-05}
    return cc.train(folder / "infonce-flow.yaml", changes, out=folder / "infonce-flow")


def encoder_with_metadata(modality: str) -> cc.Encoder:
    encoder, eval_model = small_encoder(modality)
    encoder.frozen = False
    encoder.metadata = eval_model.metadata
    return encoder


# The module


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    script = "import sys, covid_cmsf; print(sorted({'torch', 'numpy', 'cv2', 'av', 'pydantic'} & set(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout.strip() == "[]"


def test_all_lists_what_type_checkers_and_python_find() -> None:
    tree = ast.parse(Path(cc.__file__).read_text(encoding="utf-8"))
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    for_checkers = {
        (node.module, alias.name) for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    for_python = {(module, name) for module, names in cc._HOME.items() for name in names}
    assert len(for_python) > 30
    assert for_checkers == for_python
    assert sorted(name for _, name in for_python) == sorted(cc.__all__)
    assert set(cc.__all__) <= set(dir(cc))


@pytest.fixture(scope="module")
def examples(store: Path, videos: Path, flow_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the docstrings speak of."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "clips").mkdir()
    (folder / "clips" / "ucf101").symlink_to(store)
    (folder / "my.mp4").symlink_to(sorted(videos.rglob("*.avi"))[0])
    (folder / "infonce-flow.pt").symlink_to(flow_run / "checkpoints" / "last.pt")
    small_checkpoint(folder / "encoder.safetensors")
    cc.extract_features(folder / "encoder.safetensors", store, folder / "rgb.safetensors", device="cpu")
    save_index(folder / "index", *index_features([folder / "rgb.safetensors"]))
    return folder


@pytest.mark.parametrize("name", cc.__all__)
def test_every_public_name_has_a_docstring_whose_example_runs(
    name: str, examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (test,) = doctest.DocTestFinder(recurse=False).find(
        getattr(cc, name), name, module=False, globs={"cc": cc, "torch": torch}
    )
    assert test.examples
    monkeypatch.chdir(examples)
    output = StringIO()
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=output.write)
    assert not result.failed, output.getvalue()


def test_no_public_name_is_hidden_by_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(cc.__path__)}
    assert "clips" in modules
    assert not modules & set(cc.__all__)  # importing covid_cmsf.x sets the attribute x to the module


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'MeanShift0'"):
        cc.MeanShift0  # type: ignore[attr-defined]  # noqa: B018


# Video files


@pytest.mark.slow
def test_embed_agrees_with_a_clip_store_in_flow_to_the_last_bit(videos: Path, store: Path, tmp_path: Path) -> None:
    encoder, clips = encoder_with_metadata("flow"), cc.open_clips(store)
    assert isinstance(clips, cc.ClipStore)
    features = cc.extract_features(encoder, clips, tmp_path / "flow.safetensors", device="cpu", batch_size=4)
    found = cc.embed([videos / f"{name}.avi" for name in features.videos.ids], encoder, like=clips, batch_size=4)
    assert torch.equal(found, features.features)


@pytest.mark.parametrize("bound", ["size", "auto"])
def test_embed_prepares_frames_as_in_training_without_being_told(videos: Path, tmp_path: Path, bound: str) -> None:
    """The metadata of a trained network has the short edge and how flow was computed and quantized."""
    options = ["--short-edge", "40", "--flow-bound", bound, "--flow-size", "native", "--quality", "0"]
    result = preprocess(videos, tmp_path / "clips", *options)
    assert result.returncode == 0, result.stderr
    clips = cc.ClipStore.open(tmp_path / "clips")
    (tmp_path / "run.yaml").write_text(RUN)
    changes = {"clips": str(clips.path), "schedule.epochs": 1, "optimizer.lr": 1e-05}
    encoder = encoder_with_metadata("flow")  # one epoch's batch norm gives every video the same feature
    encoder.metadata = cc.load_encoder(cc.train(tmp_path / "run.yaml", changes, out=tmp_path / "run")).metadata
    assert encoder.metadata is not None and encoder.metadata.short_edge == 40
    assert encoder.metadata.flow == clips.info.flow
    features = cc.extract_features(encoder, clips, tmp_path / "flow.safetensors", device="cpu", batch_size=4)
    assert len(features.features.unique(dim=0)) == 24
    paths = [videos / f"{name}.avi" for name in features.videos.ids]
    found = cc.embed(paths, encoder, batch_size=4)
    assert torch.equal(found, cc.embed(paths, encoder, like=clips, batch_size=4))
    assert torch.equal(found, features.features)  # quality 0 is lossless for flow


def test_embed_of_a_stores_own_rgb_file_is_the_stores_feature_to_the_last_bit(store: Path, tmp_path: Path) -> None:
    encoder = encoder_with_metadata("rgb")
    features = cc.extract_features(encoder, store, tmp_path / "rgb.safetensors", device="cpu", windows=2)
    paths = [store / "rgb" / f"{name}.mp4" for name in features.videos.ids]
    assert torch.equal(cc.embed(paths, encoder, windows=2), features.features)


def test_embed_of_the_original_videos_is_near_the_stores_rgb_features(
    videos: Path, store: Path, tmp_path: Path
) -> None:
    encoder = encoder_with_metadata("rgb")
    features = cc.extract_features(encoder, store, tmp_path / "rgb.safetensors", device="cpu")
    found = cc.embed([videos / f"{name}.avi" for name in features.videos.ids], encoder)
    # The store halves the resolution of colors once more, and these videos are colored noise.
    similarity = nn.functional.cosine_similarity(found, features.features)
    others = nn.functional.cosine_similarity(found.roll(1, 0), features.features)
    assert similarity.min() > 0.95
    assert similarity.mean() > 0.98 > others.mean()


@pytest.mark.parametrize("modality", ["rgb", "flow", "residual_flow", "rgbdiff"])
def test_embed_of_one_file_is_a_vector_and_leaves_the_encoder_as_it_was(
    videos: Path, store: Path, modality: str
) -> None:
    encoder = encoder_with_metadata(modality).train()
    last = [*encoder.modules()][-1]
    last.training = False  # as someone does who freezes one batch norm
    modes = [module.training for module in encoder.modules()]
    path = sorted(videos.rglob("*.avi"))[0]
    one, many = (cc.embed(given, encoder, like=cc.ClipStore.open(store)) for given in (str(path), [path]))
    assert one.shape == (encoder.num_features,)
    assert torch.equal(many, one[None])
    assert not one.requires_grad
    assert [module.training for module in encoder.modules()] == modes


def test_embed_pads_a_video_shorter_than_a_clip(tmp_path: Path) -> None:
    path = write_video(tmp_path / "short.avi", moving_square(3))
    assert torch.isfinite(cc.embed(path, encoder_with_metadata("rgb"))).all()


@pytest.mark.slow
def test_flow_of_larger_frames_is_that_of_the_short_edge_asked_for(tmp_path: Path) -> None:
    frames = moving_square(4)
    large = np.stack([cv2.resize(frame, (128, 96)) for frame in frames])
    path = write_video(tmp_path / "large.avi", large)
    encoder = encoder_with_metadata("flow")
    native, small = (cc.embed(path, encoder, short_edge=edge, flow_backend="opencv") for edge in (None, 48))
    expected = cc.embed(write_video(tmp_path / "small.avi", frames), encoder, flow_backend="opencv")
    assert (small - expected).norm() < (native - expected).norm()


def test_embed_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    text, single = tmp_path / "text.mp4", write_video(tmp_path / "single.avi", moving_square(1))
    text.write_text("no video")
    rgb, flow, motion = map(encoder_with_metadata, ("rgb", "flow", "motion"))
    assert motion.metadata is not None
    vectors = FlowInfo(algorithm=MOTION_VECTORS, backend="pyav", version="", parameters={}, bound=20.0)
    motion.metadata = motion.metadata.model_copy(update={"flow": vectors})
    with pytest.raises(ValueError, match=r"text\.mp4: cannot open as a video"):
        cc.embed(text, rgb)
    with pytest.raises(FileNotFoundError, match=r"no video file .*gone\.mp4"):
        cc.embed(tmp_path / "gone.mp4", rgb)
    with pytest.raises(ValueError, match=r"single\.avi has 1 frames; flow needs at least 2"):
        cc.embed(single, flow)
    with pytest.raises(ValueError, match=r"single\.avi has 1 frames; motion needs at least 2"):
        cc.embed(single, motion)
    with pytest.raises(ValueError, match="this Linear has no metadata"):
        cc.embed(single, nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no video files"):
        cc.embed([], rgb)
    with pytest.raises(ValueError, match="at least 1 window|num_windows"):
        cc.embed(single, rgb, windows=0)


def test_optical_flow_takes_rgb_and_gray_frames_as_arrays_and_tensors() -> None:
    frames = moving_square(4)
    gray = np.stack([cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames])
    quick = cc.FlowParameters(warps=1, nscales=2, outer_iterations=1)
    solver = cv2.optflow.DualTVL1OpticalFlow_create(warps=1, nscales=2, outerIterations=1)
    expected = np.stack([solver.calc(*pair, None).transpose(2, 0, 1) for pair in pairwise(gray)])
    tensor = torch.from_numpy(frames)
    for given in (frames, gray, tensor, tensor.permute(0, 3, 1, 2), torch.from_numpy(gray)):
        flow = cc.optical_flow(given, backend="opencv", parameters=quick)
        assert flow.shape == (3, 2, 48, 64) and flow.dtype == torch.float32
        assert torch.equal(flow, torch.from_numpy(expected))


def test_optical_flow_finds_a_shift_of_two_pixels() -> None:
    picture = cv2.GaussianBlur(np.random.default_rng(0).integers(0, 256, (64, 80)).astype(np.uint8), (0, 0), 3)
    flow = cc.optical_flow(np.stack([picture, np.roll(picture, 2, axis=1)]), backend="torch", device="cpu")
    assert flow[0, 0, 16:-16, 16:-16].median() == pytest.approx(2, abs=0.2)
    assert flow[0, 1, 16:-16, 16:-16].median() == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros((1, 32, 32), np.uint8), "1 frames; flow needs at least 2"),
        (np.zeros((2, 32, 32), np.float32), "frames are float32"),
        (np.zeros((32, 32), np.uint8), "frames are uint8"),
        (np.zeros((2, 4, 32, 32), np.uint8), "needs uint8 RGB"),
    ],
)
def test_optical_flow_refuses_other_frames(frames: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cc.optical_flow(frames, backend="opencv")


# Losses


@pytest.mark.parametrize("name", ["infonce", "supcon", "coclr"])
def test_contrastive_loss_is_that_of_the_training_loop(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    unit = [nn.functional.normalize(torch.randn(6, 8, generator=generator)) for _ in range(6)]
    ids = [torch.arange(6) + 6 * number for number in range(2)]
    labels = torch.tensor([0, 1, 2, 0, 1, -1])
    banks = MemoryBanks(6, {"target": 8, "flow": 8})
    banks.push_({"target": unit[0], "flow": unit[1]}, videos=ids[0], sources=ids[0], labels=labels)
    bank, (online, keys, guide) = banks.main, unit[2:5]
    batch = EmbeddedBatch(
        online=online,
        sources=ids[1],
        labels=labels,
        true_labels=labels,
        videos=ids[1],
        target=keys,
        guides={"flow": guide},
    )
    method, criterion, positives = {
        "infonce": (InfoNCE(temperature=0.1), cc.ContrastiveLoss(0.1), None),
        "supcon": (
            SupervisedContrastive(temperature=0.1),
            cc.ContrastiveLoss(0.1, reduce="mean_log"),
            cc.label_positives(labels, bank),
        ),
        "coclr": (
            CoCLR(temperature=0.1, top_k=2),
            cc.ContrastiveLoss(0.1),
            cc.mined_positives(guide, bank, sources=ids[1], column="flow", top_k=2),
        ),
    }[name]
    expected = method.losses(batch, banks, generator).mean()
    assert torch.equal(criterion(online, keys, bank, positives), expected)
    assert expected > 0


def test_losses_say_what_they_cannot_take() -> None:
    with pytest.raises(ValueError, match="temperature is 0"):
        cc.ContrastiveLoss(0)
    with pytest.raises(ValueError, match="choose from log_sum, mean_log"):
        cc.ContrastiveLoss(reduce="sum")  # type: ignore[arg-type]
    bank = cc.MemoryBank(4, rgb=2, flow=2)
    indices = bank.push_(rgb=torch.eye(2), flow=torch.eye(2), videos=torch.arange(2))
    with pytest.raises(ValueError, match="guide columns audio: those of the memory bank are flow"):
        cc.MeanShiftLoss(k=1, constraint=cc.GuideConstraint("audio"))(torch.eye(2), bank, indices)


# From features to numbers


def test_retrieval_takes_features_or_their_file(tmp_path: Path) -> None:
    features = synthetic_features(noise=2.0)
    cc.save_features(tmp_path / "some.safetensors", features)
    result = cc.retrieval(tmp_path / "some.safetensors")
    assert result == cc.retrieval(features)
    assert list(result.recall) == [1, 5, 10, 20]
    assert 0 < result.recall[1] <= result.recall[5] <= 100


def test_extract_features_takes_paths_and_leaves_the_encoder_as_it_was(store: Path, tmp_path: Path) -> None:
    encoder = encoder_with_metadata("rgb").train()
    features = cc.extract_features(encoder, store, tmp_path / "a.safetensors", device="cpu")
    assert encoder.training
    assert features.features.shape == (24, encoder.num_features)
    assert cc.load_features(tmp_path / "a.safetensors").provenance == features.provenance


# One's own loop


def test_view_dataset_by_split_is_that_of_records_and_a_configuration(store: Path) -> None:
    clips = cc.open_clips(store)
    config = cc.ViewConfig(modalities=("rgb", "flow"), length=4, size=16)
    by_name = cc.ViewDataset(clips, split="1", subset="train", modalities=("rgb", "flow"), length=4, size=16)
    by_records = cc.ViewDataset(clips, clips.select("1", "train"), config, seed=0)
    first, second = (next(cc.ViewLoader(data, batch_size=3).epoch(0)) for data in (by_name, by_records))
    assert torch.equal(first.videos, second.videos)
    assert set(first.online) == {"rgb", "flow"}
    assert all(torch.equal(first.online[name], second.online[name]) for name in first.online)
    assert len(cc.ViewDataset(clips, modalities=("rgb",))) == 24


def test_view_dataset_says_which_arguments_do_not_go_together(store: Path) -> None:
    clips = cc.open_clips(store)
    with pytest.raises(ValueError, match="subset 'test' needs a split"):
        cc.ViewDataset(clips, subset="test")
    with pytest.raises(ValueError, match="not both"):
        cc.ViewDataset(clips, clips.records, split="1")
    with pytest.raises(ValueError, match="unknown modality 'sound'"):
        cc.ViewDataset(clips, modalities=("sound",))


def test_train_is_the_command_in_one_line(flow_run: Path, store: Path, tmp_path: Path) -> None:
    assert (flow_run / "checkpoints" / "last.pt").is_file()
    with pytest.raises(ValueError, match="unknown key 'epoch'"):
        cc.train(flow_run.with_suffix(".yaml"), {"clips": str(store), "epoch": 1}, out=tmp_path / "run")
    config = cc.TrainConfig.model_validate({**yaml.safe_load(RUN), "clips": str(store)})
    with pytest.raises(ValueError, match="needs `out`"):
        cc.train(config)


def test_the_quickstart_runs(store: Path, flow_run: Path) -> None:
    torch.manual_seed(0)
    clips = cc.open_clips(store)
    data = cc.ViewDataset(clips, split="1", subset="train", modalities=("rgb", "flow"), length=5, size=32)
    online = cc.create_network("s3d_tiny", modality="rgb", head="cmsf", predictor=True)
    target = cc.make_target(online)
    guide = cc.load_guide(flow_run)  # frozen
    bank = cc.MemoryBank(16, rgb=target.dim, flow=guide.dim)
    criterion = cc.MeanShiftLoss(k=2, constraint=cc.GuideConstraint("flow", n=3))
    optimizer = torch.optim.Adam(online.parameters(), 1e-3)
    losses, start = [], [parameter.clone() for parameter in target.parameters()]
    for epoch in range(2):
        for batch in cc.ViewLoader(data, batch_size=4).epoch(epoch):
            rows = bank.push_(rgb=target(batch.target["rgb"]), flow=guide(batch.target["flow"]), videos=batch.videos)
            loss = criterion(online(batch.online["rgb"]), bank, rows)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            cc.ema_update_(target, online, 0.99)
            losses.append(loss.item())
    assert len(losses) == 4 and all(0 < loss < 4 for loss in losses)
    assert len(bank) == 16
    assert any(not torch.equal(old, new) for old, new in zip(start, target.parameters(), strict=True))
    guide.check_unchanged()


def test_configurations_are_found_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no clips at nowhere"):
        cc.train("infonce", {"clips": "nowhere"})
    with pytest.raises(ValueError, match="is a plan: use"):
        cc.train("demo")
    with pytest.raises(FileNotFoundError, match="no configuration 'infonec'"):
        cc.train("infonec")
    with pytest.raises(ValueError, match="no stage 'none'"):
        cc.run_plan("demo", only="none")
