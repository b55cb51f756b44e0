"""Features, probes, fine-tuning, flow and search on the pretended GPU equal those of the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covid_cmsf.devices import GpuMemoryError
from covid_cmsf.evaluation.features.extract import extract_features
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.inference import window_outputs
from covid_cmsf.evaluation.features.model import create_random_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.features.video_dataset import VideoDataset
from covid_cmsf.evaluation.finetune.config import finetune_config
from covid_cmsf.evaluation.finetune.model import build_classifier, build_optimizer
from covid_cmsf.evaluation.finetune.run import run_finetune
from covid_cmsf.evaluation.finetune.train import ClipTrainer
from covid_cmsf.evaluation.knn import evaluate_knn
from covid_cmsf.evaluation.probes.linear import evaluate_linear
from covid_cmsf.evaluation.transfer.logistic import Hyperparameters, LabeledFeatures, fit_classifier
from covid_cmsf.search.build import Extraction, index_videos
from covid_cmsf.search.files import FileEmbedder
from covid_cmsf.search.query import search
from preprocess.flow import FlowParameters, make_flow
from tests.evaluation.factories import SyntheticClips, small_checkpoint, small_encoder
from tests.factories import moving_square, write_video
from tests.pretended_copies import COPIES_TO_CPU
from tests.pretended_gpu import GPU, LOG, pretended_gpu
from tests.pretended_streams import Event
from tests.search.factories import quick_encoder

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


@pytest.mark.parametrize("modality", ["rgb", "flow"])
def test_features_and_their_probes_are_those_of_the_cpu(modality: str, tmp_path: Path) -> None:
    def extract(device: str) -> Features:
        model = small_encoder(modality)[1]
        return extract_features(model, SyntheticClips(), tmp_path / device, device=torch.device(device))

    on_cpu = extract("cpu")
    with pretended_gpu() as gpu:
        on_gpu = extract("cuda")
        knn, linear = evaluate_knn(on_gpu, num_neighbors=(1, 5)), evaluate_linear(on_gpu)
    assert gpu.launches > 500, "it ran elsewhere"
    assert torch.allclose(on_gpu.features, on_cpu.features, atol=1e-5)
    assert knn.top1 == evaluate_knn(on_cpu, num_neighbors=(1, 5)).top1
    assert linear.scores.top1 == evaluate_linear(on_cpu).scores.top1


def test_random_weights_are_calibrated_on_the_gpu(tmp_path: Path) -> None:
    with pretended_gpu():
        model = create_random_model("s3d_tiny", modality="rgb", seed=0, input_size=(6, 24, 24))
        features = extract_features(model, SyntheticClips(), tmp_path / "features", device=torch.device("cuda"))
    assert features.features.isfinite().all()


def test_logistic_regression_is_that_of_the_cpu() -> None:
    generator = torch.Generator().manual_seed(0)
    data = LabeledFeatures(torch.randn(30, 5, generator=generator), torch.arange(30) % 3)
    chosen = Hyperparameters(20, 1.0, 0.1)
    on_cpu = fit_classifier(data, chosen, num_classes=3)
    with pretended_gpu():
        on_gpu = fit_classifier(data, chosen, num_classes=3, device="cuda")
        predictions, weight = on_gpu.predict(data.features), on_gpu.weight.cpu()
    assert torch.allclose(weight, on_cpu.weight, atol=1e-4)
    assert torch.equal(predictions, on_cpu.predict(data.features))


@pytest.mark.parametrize("mode", ["linear", "finetune", "attentive", "compress"])
def test_fine_tuning_runs(mode: str, tmp_path: Path) -> None:
    chosen = finetune_config(mode, epochs=2, batch_size=6)
    with pretended_gpu() as gpu:
        result = run_finetune(
            small_encoder()[1], SyntheticClips(), tmp_path / mode, chosen, device=torch.device("cuda")
        )
    assert gpu.launches > 500 and 0 <= result.scores.top1 <= 100


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_fine_tuning_has_fused_optimizers_on_a_gpu(optimizer: str) -> None:
    chosen = finetune_config("finetune", optimizer=optimizer)
    classifier = build_classifier(small_encoder()[1], 3, chosen)
    assert not build_optimizer(classifier, chosen).defaults["fused"]
    with pretended_gpu():
        assert build_optimizer(classifier.to("cuda"), chosen).defaults["fused"]


@pytest.mark.parametrize("mode", ["compress", "finetune"])
def test_a_step_of_fine_tuning_hardly_waits(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, steps = small_encoder()[1], list[list[str]]()
    for module in model.network.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = 0.1  # the factory's cumulative average would ask the GPU for its count
    real = ClipTrainer._train_step_

    def step(trainer: ClipTrainer, batch: Any) -> Any:
        LOG.reset()
        result = real(trainer, batch)
        steps.append(LOG.lines)
        return result

    monkeypatch.setattr(ClipTrainer, "_train_step_", step)
    chosen = finetune_config(mode, epochs=2, batch_size=6)
    with pretended_gpu():
        run_finetune(model, SyntheticClips(), tmp_path / mode, chosen, device=torch.device("cuda"))
    assert len(steps) >= 4
    for lines in steps:
        assert sum(int(line.split(" x ")[0]) for line in lines) <= 2, lines
        assert not any("blocking copy" in line for line in lines), lines


def test_an_extraction_waits_once_per_batch() -> None:
    model, clips = small_encoder()[1], SyntheticClips()
    protocol = build_eval_protocol(model.metadata, num_windows=3)
    data = VideoDataset(clips, clips.records, ["test"] * len(clips.records), protocol)
    with pretended_gpu() as gpu:
        model.network.to("cuda")
        gpu.reset()
        found = window_outputs(model.network, data, [data[i] for i in range(8)], batch_size=4, device=GPU)
        assert len(found.windows) == 24 and not found.windows.is_cuda
        assert gpu.synchronizations.total() == 6, gpu.lines
        assert {what for what, _ in gpu.synchronizations} == {"torch.cuda.Event.synchronize"}, gpu.lines
        assert found.windows.isfinite().all(), "every batch was waited for before it was read"


def test_an_extraction_waits_for_a_batch_while_the_gpu_works_on_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    model, clips = small_encoder()[1], SyntheticClips()
    data = VideoDataset(
        clips, clips.records, ["test"] * len(clips.records), build_eval_protocol(model.metadata, num_windows=3)
    )
    order: list[str] = []
    real_forward, real_wait = model.network.forward, Event.synchronize

    def forward(views: torch.Tensor) -> torch.Tensor:
        order.append("launch")
        made: torch.Tensor = real_forward(views)
        return made

    def wait(event: Event) -> None:
        order.append("wait")
        arrived = COPIES_TO_CPU.launched
        real_wait(event)
        assert len(COPIES_TO_CPU.launched) == len(arrived) - 1, "it does not wait for the batch that was just launched"

    monkeypatch.setattr(model.network, "forward", forward)
    monkeypatch.setattr(Event, "synchronize", wait)
    with pretended_gpu():
        window_outputs(model.network, data, [data[i] for i in range(8)], batch_size=8, device=GPU)
    assert order == ["launch", "launch", "wait", "launch", "wait", "wait"]


def test_a_full_gpu_is_explained_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    def run(work: Callable[[], object]) -> str:
        with pretended_gpu(), pytest.raises(GpuMemoryError) as raised:
            work()
        assert "\n" not in str(raised.value)
        return str(raised.value)

    model, gpu, chosen = small_encoder()[1], torch.device("cuda"), finetune_config("finetune", batch_size=6)
    monkeypatch.setattr(torch.nn.functional, "conv3d", full)
    extracting = run(lambda: extract_features(model, SyntheticClips(), tmp_path / "features", device=gpu))
    assert "16 windows of 6x24x24 at once, fp32" in extracting and "--batch-size 8" in extracting
    tuning = run(lambda: run_finetune(model, SyntheticClips(), tmp_path / "finetune", chosen, device=gpu))
    assert "6 clips of 6x24x24 per GPU, finetune, fp32" in tuning and "--batch-size 3" in tuning
    monkeypatch.setattr(ClipTrainer, "__init__", full)
    assert run(lambda: run_finetune(model, SyntheticClips(), tmp_path / "built", chosen, device=gpu)) == tuning


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_flow_is_that_of_the_cpu(gamma: float) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, 24, 30)).astype(np.uint8)
    parameters = FlowParameters(gamma=gamma, nscales=2, warps=2, inner_iterations=4, outer_iterations=2)
    expected = make_flow("torch", parameters, device="cpu")(frames)
    with pretended_gpu() as gpu:
        found = make_flow("torch", parameters)(frames)  # CUDA by default
    assert gpu.launches > 100 and np.allclose(found, expected, atol=1e-4)


def test_a_video_file_finds_itself_in_an_index(tmp_path: Path) -> None:
    for number in range(3):
        write_video(tmp_path / "videos" / f"v{number}.mp4", moving_square(12, seed=number))
    encoder = quick_encoder(small_checkpoint(tmp_path / "rgb.safetensors", "rgb"))
    with pretended_gpu() as gpu:
        index_videos(tmp_path / "videos", [encoder], tmp_path / "index", extraction=Extraction(device="cuda"))
        embedder = FileEmbedder(tmp_path / "index", device="cuda")
        best = search(embedder.index, embedder.embed(tmp_path / "videos" / "v1.mp4").vectors, top=1)[0]
    assert gpu.launches > 100 and embedder.index.videos[best.video].video_id == "v1"
    assert best.score == pytest.approx(1, abs=1e-4)
