"""Training on clips: it learns, it continues, it freezes what it should, and it never chooses on the test subset."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.evaluation.features.file import load_probabilities
from covid_cmsf.evaluation.features.model import create_random_model, load_eval_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.evaluation.features.video_dataset import VideoDataset
from covid_cmsf.evaluation.finetune.config import PRESETS, FinetuneConfig, finetune_config
from covid_cmsf.evaluation.finetune.predict import predict_videos
from covid_cmsf.evaluation.finetune.run import FinetuneResult, run_finetune
from covid_cmsf.evaluation.finetune.subsets import choose_subsets
from covid_cmsf.models.checkpoints.formats.native import CHECKPOINT_FORMAT
from covid_cmsf.models.encoder import weights_sha256
from tests.evaluation.factories import SIZE, SyntheticClips, small_encoder

QUICK = {"batch_size": 6, "num_crops": 1, "val_fraction": 0.3}


def quick(mode: str, **changes: object) -> FinetuneConfig:
    return finetune_config(mode, **{**QUICK, **changes})


def run(folder: Path, chosen: FinetuneConfig, clips: SyntheticClips | None = None, **options: object) -> FinetuneResult:
    _, eval_model = small_encoder()
    return run_finetune(eval_model, clips or SyntheticClips(), folder, chosen, **options)  # type: ignore[arg-type]


def state(path: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["state"]
    return tensors


def test_the_recipes_are_those_of_han_et_al() -> None:
    tuned, probe, scratch = PRESETS["finetune"], PRESETS["linear"], PRESETS["scratch"]
    assert (tuned.epochs, tuned.lr, tuned.backbone_lr_factor) == (500, 1e-3, 0.1)
    assert (tuned.dropout, tuned.weight_decay, tuned.batch_size, tuned.num_crops) == (0.9, 1e-3, 32, 10)
    rates = [tuned.lr_at(epoch) for epoch in (0, 399, 400, 449, 450)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5])
    assert (probe.epochs, probe.lr, probe.optimizer, probe.normalize, probe.batch_norm) == (100, 0.1, "sgd", True, True)
    assert [probe.lr_at(epoch) for epoch in (59, 60, 80)] == pytest.approx([0.1, 0.01, 0.001])
    assert scratch.backbone_lr_factor == 1.0
    with pytest.raises(ValueError, match="unknown mode 'all'; choose from linear, finetune, scratch"):
        finetune_config("all")
    with pytest.raises(ValueError, match="num_crops = 3"):
        finetune_config("linear", num_crops=3)


@pytest.mark.slow
def test_the_linear_probe_learns_and_leaves_the_encoder_alone(tmp_path: Path) -> None:
    result = run(tmp_path / "run", quick("linear", epochs=8))
    assert result.scores.top1 > 50 and result.mode == "linear" and result.protocol == "clean"
    encoder, _ = small_encoder()
    assert weights_sha256(load_eval_model(tmp_path / "run" / "best.pt").network) == weights_sha256(encoder)
    assert result.history[-1]["loss"] < result.history[0]["loss"] and len(result.history) == 8


@pytest.mark.slow
def test_fine_tuning_learns_and_changes_the_encoder(tmp_path: Path) -> None:
    result = run(tmp_path / "run", quick("finetune", epochs=6, dropout=0.2))
    assert result.history[-1]["loss"] < result.history[0]["loss"] and result.scores.num_videos == 6
    tuned = load_eval_model(tmp_path / "run" / "best.pt")
    assert weights_sha256(tuned.network) != weights_sha256(small_encoder()[0])
    assert "then finetune on labels" in tuned.metadata.trained and tuned.metadata.input_size == SIZE
    answers = load_probabilities(tmp_path / "run" / "probabilities.safetensors")
    right = answers.probabilities.argmax(1) == answers.videos.labels
    assert 100 * float(right.double().mean()) == pytest.approx(result.scores.top1)
    assert set(answers.videos.subsets) == {"test"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["linear", "finetune"])
def test_a_killed_training_continues_to_the_same_weights(tmp_path: Path, mode: str) -> None:
    chosen = quick(mode, epochs=3)
    whole = run(tmp_path / "whole", chosen)
    done = []

    def kill_after_two() -> None:
        done.append(1)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", chosen, on_epoch=kill_after_two)
    continued = run(tmp_path / "killed", chosen)
    assert continued == whole
    for name in ("last.pt", "best.pt"):
        first, second = state(tmp_path / "whole" / name), state(tmp_path / "killed" / name)
        assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "run", quick("linear", epochs=1))
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="other settings, weights or clips"):
        run(tmp_path / "run", quick("linear", epochs=2))
    assert len(run(tmp_path / "run", quick("linear", epochs=2), replace=True).history) == 2
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


class TracedClips(SyntheticClips):
    """Keep the process of every reading, by a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> torch.Tensor:
        (self.folder / f"{os.getpid()}-{record.video_id.replace('/', '-')}").touch()
        return super().read_raw(record, modality, frame_indices)


@pytest.mark.slow
def test_workers_read_the_videos_of_every_validation_and_live_on(tmp_path: Path) -> None:
    folder = tmp_path / "readings"
    folder.mkdir()
    whole = run(tmp_path / "whole", quick("linear", epochs=3))
    result = run(tmp_path / "run", quick("linear", epochs=3), TracedClips(folder), num_workers=1)
    processes = {path.name.split("-")[0] for path in folder.iterdir()}
    assert len(processes) == 3 and str(os.getpid()) not in processes  # one each for training, validation and test
    assert result.history == whole.history


def test_a_flipped_bit_in_a_checkpoint_is_found(tmp_path: Path) -> None:
    run(tmp_path, quick("linear", epochs=1))
    for name in ("best.pt", "last.pt"):
        sound = (tmp_path / name).read_bytes()
        weight = state(tmp_path / name)["classifier.mlp.0.weight"].numpy().tobytes()
        position = sound.index(weight)
        (tmp_path / name).write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
        with pytest.raises(ValueError, match=rf"{name} is a truncated or damaged torch file"):
            run(tmp_path, quick("linear", epochs=1))
        (tmp_path / name).write_bytes(sound)
    assert torch.load(tmp_path / "best.pt", weights_only=True)["format"] == CHECKPOINT_FORMAT


def test_validation_comes_from_training_sources_only() -> None:
    clips = SyntheticClips(num_sources=8)
    videos = VideoTable.from_records(clips.records, [clips.splits["1"][record.video_id] for record in clips.records])
    subsets = choose_subsets(videos, quick("linear", epochs=1))
    sources = [{videos.sources[i] for i in rows} for rows in (subsets.fit, subsets.val, subsets.test)]
    assert not sources[0] & sources[1] and not (sources[0] | sources[1]) & sources[2]
    assert {videos.subsets[i] for i in [*subsets.fit, *subsets.val]} == {"train"} and subsets.val
    everything = choose_subsets(videos, quick("linear", epochs=1, val_fraction=0.0))
    assert everything.val == [] and len(everything.fit) == len(subsets.fit) + len(subsets.val)
    tuning = choose_subsets(videos, quick("linear", epochs=1), query="val")
    assert {videos.subsets[i] for i in tuning.test} == {"train"}
    assert not {videos.sources[i] for i in tuning.test} & {videos.sources[i] for i in [*tuning.fit, *tuning.val]}


@pytest.mark.slow
@pytest.mark.parametrize("num_crops", [1, 5, 10])
def test_probabilities_are_means_over_windows_and_crops(num_crops: int) -> None:
    encoder, eval_model = small_encoder("flow")
    network = torch.nn.Sequential(encoder, torch.nn.Linear(encoder.num_features, 3)).eval()
    clips = SyntheticClips(broken=[1])
    eval_protocol = build_eval_protocol(eval_model.metadata, num_windows=3)
    data = VideoDataset(clips, clips.records[:4], ["test"] * 4, eval_protocol, num_crops=num_crops)
    found = predict_videos(network, data, num_workers=0, device=torch.device("cpu"))
    assert found.indices == [0, 2, 3] and found.errors == {1: "damaged"}
    for row, number in enumerate(found.indices):
        views = list(data[number].views(eval_protocol, torch.device("cpu")))
        assert len(views) == 3 * num_crops
        with torch.inference_mode():
            mean = sum(network(view[None]).softmax(1) for view in views) / len(views)
        assert torch.allclose(found.probabilities[row], mean[0], atol=1e-5)


def test_unreadable_videos_are_listed(tmp_path: Path) -> None:
    clips = SyntheticClips(broken=[0, 3])  # one of test, one of train
    result = run(tmp_path / "run", quick("linear", epochs=2), clips)
    assert result.scores.num_videos == 5
    assert {entry[:2] for entry in result.skipped} == {("c0/s0_0", "test"), ("c0/s1_1", "train")}


@pytest.mark.slow
def test_from_scratch_and_2d_networks_train(tmp_path: Path) -> None:
    eval_model = create_random_model("r18", modality="frame", seed=1, input_size=(1, 32, 32))
    result = run_finetune(eval_model, SyntheticClips(), tmp_path / "run", quick("scratch", epochs=2, dropout=0.0))
    assert result.mode == "scratch" and len(result.history) == 2
    assert result.provenance["eval_protocol"]["modality"] == "frame"


def test_a_batch_larger_than_the_training_part_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="do not fill one batch of 100"):
        run(tmp_path / "run", quick("linear", epochs=1, batch_size=100))


def test_a_loss_that_is_not_finite_stops_the_training(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the loss is nan|the loss is inf"):
        run(tmp_path / "run", quick("finetune", epochs=5, lr=1e30, dropout=0.0))


@pytest.mark.slow
def test_shared_sources_are_refused_or_named(tmp_path: Path) -> None:
    clips = SyntheticClips()
    clips.splits["1"][clips.records[1].video_id] = "train"  # its sibling is tested on
    with pytest.raises(ValueError, match="1 sources are in both 'train' and 'test' .*'c0_s0'"):
        run(tmp_path / "run", quick("linear", epochs=1), clips)
    allowed = run(tmp_path / "run", quick("linear", epochs=1), clips, allow_shared_sources=True)
    assert allowed.overlap.num_sibling_sources == 1
