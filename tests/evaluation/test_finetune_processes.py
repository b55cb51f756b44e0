"""Several processes train a classifier together: the result of one process, also after one of them was killed."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from covid_cmsf.evaluation.features.file import load_probabilities
from covid_cmsf.evaluation.finetune.config import finetune_config
from covid_cmsf.evaluation.finetune.model import ClipClassifier
from covid_cmsf.evaluation.finetune.process_group import ProcessGroup, num_sharing, run_in_group
from covid_cmsf.evaluation.finetune.run import FinetuneResult, run_finetune
from tests.evaluation.factories import SyntheticClips, small_encoder

TWO = [torch.device("cpu")] * 2
QUICK: dict[str, Any] = {"batch_size": 6, "num_crops": 1, "epochs": 3}


def run(folder: Path, mode: str, clips: SyntheticClips | None = None, **options: Any) -> FinetuneResult:
    changes: dict[str, Any] = {"val_fraction": 0.3} if mode != "compress" else {}
    # SGD: the steps of Adam hardly change if gradients are scaled
    changes |= {"dropout": 0.2, "optimizer": "sgd", "lr": 0.02} if mode == "finetune" else {}
    chosen = finetune_config(mode, **QUICK, **changes)
    return run_finetune(small_encoder()[1], clips or SyntheticClips(), folder, chosen, **options)


def assert_same(folders: list[Path], results: list[FinetuneResult], *, atol: float) -> None:
    one, two = ({key: torch.tensor([entry[key] for entry in result.history]) for key in ("loss", "train")}
                for result in results)  # fmt: skip
    assert all(torch.allclose(one[key], two[key], atol=max(atol, 1e-4)) for key in one)
    assert results[0].skipped == results[1].skipped and results[0].best_epoch == results[1].best_epoch
    states = [torch.load(folder / "best.pt", weights_only=True)["state"] for folder in folders]
    for name, value in states[0].items():
        assert torch.allclose(value.double(), states[1][name].double(), atol=atol), name
    answers = [load_probabilities(folder / "probabilities.safetensors") for folder in folders]
    assert answers[0].videos.ids == answers[1].videos.ids
    assert torch.allclose(answers[0].probabilities, answers[1].probabilities, atol=10 * atol)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["linear", "compress", "attentive"])
def test_two_processes_train_the_probe_of_one(mode: str, tmp_path: Path) -> None:
    lrs = (1e-6, 3e-3) if mode == "attentive" else ()
    clips = SyntheticClips(broken=[0, 5, 9])  # of test, and of training
    results = [
        run(tmp_path / name, mode, clips, device=devices, lrs=lrs) for name, devices in (("one", TWO[:1]), ("two", TWO))
    ]
    assert [result.provenance["processes"] for result in results] == [1, 2]
    assert results[0].skipped and results[0].lrs.keys() == results[1].lrs.keys()
    assert_same([tmp_path / "one", tmp_path / "two"], results, atol=2e-5)


@pytest.mark.slow
def test_fine_tuning_by_two_is_that_of_one_with_the_batch_norm_of_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = run(tmp_path / "two", "finetune", device=TWO)
    whole = ClipClassifier.features

    def by_halves(network: ClipClassifier, clip: Tensor) -> Tensor:
        if not network.training:
            return whole(network, clip)
        first, second = clip.chunk(2)
        copies = {name: buffer.clone() for name, buffer in network.encoder.named_buffers()}  # the second process's own
        values = {**dict(network.encoder.named_parameters()), **copies}
        return torch.cat([whole(network, first), torch.func.functional_call(network.encoder, values, (second,))])

    monkeypatch.setattr(ClipClassifier, "features", by_halves)
    alone = run(tmp_path / "one", "finetune")
    assert_same([tmp_path / "one", tmp_path / "two"], [alone, both], atol=2e-4)


@pytest.mark.slow
def test_a_killed_process_ends_the_training_which_continues_to_the_same_weights(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", "finetune", device=TWO)
    done: list[int] = []

    def kill_after_two() -> None:
        done.append(1)
        if len(done) == 2:
            max(multiprocessing.active_children(), key=lambda process: process.name).kill()

    with pytest.raises(RuntimeError, match="was killed by signal 9; the same command resumes"):
        run(tmp_path / "killed", "finetune", device=TWO, on_epoch=kill_after_two)
    assert not multiprocessing.active_children() and (tmp_path / "killed" / "last.pt").is_file()
    seen: list[int] = []
    continued = run(tmp_path / "killed", "finetune", device=TWO, on_epoch=lambda: seen.append(1))
    assert continued == whole and len(seen) == 3
    first, second = (
        torch.load(tmp_path / name / "best.pt", weights_only=True)["state"] for name in ("whole", "killed")
    )
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def talk(group: ProcessGroup, device: torch.device, on_epoch: Callable[[], None]) -> dict[str, Any]:
    norm = torch.nn.BatchNorm1d(1)
    norm.running_mean = torch.tensor([group.rank + 5.0])
    group.copy_buffers_(norm)
    own = torch.full((2, 1), group.rank + 1.0, requires_grad=True)
    gathered = group.gather(own)
    (gathered * torch.arange(1.0, 5.0)[:, None]).sum().backward()
    assert own.grad is not None
    on_epoch()
    return {
        "means": group.collect(float(norm.running_mean)),
        "gathered": gathered.flatten().tolist(),
        "gradients": group.collect(own.grad.flatten().tolist()),
        "shared": group.collect(group.share(f"from {group.rank}")),
        "parts": group.collect(list(group.part(5))),
    }


@pytest.mark.slow
def test_processes_gather_in_order_and_share_what_the_first_one_has() -> None:
    epochs: list[int] = []
    assert run_in_group(talk, TWO, on_epoch=lambda: epochs.append(1)) == {
        "means": [5.0, 5.0],
        "gathered": [1.0, 1.0, 2.0, 2.0],
        "gradients": [[1.0, 2.0], [3.0, 4.0]],
        "shared": ["from 0", "from 0"],
        "parts": [[0, 2, 4], [1, 3]],
    }
    assert epochs == [1], "only the first process counts"


def test_a_batch_is_shared_equally(tmp_path: Path) -> None:
    assert [num_sharing(32, count) for count in (1, 2, 3, 4, 6, 8)] == [1, 2, 2, 4, 4, 8]
    with pytest.raises(ValueError, match="a batch of 6 does not divide among 4 processes"):
        run(tmp_path / "run", "linear", device=TWO * 2)
