"""A loss that isn't finite stops the run and leaves what is needed to look at that step again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.methods.base import EmbeddedBatch
from covid_cmsf.training import failures, loop
from covid_cmsf.training.build import TrainComponents
from covid_cmsf.training.failures import NonFiniteLoss, replay, to_device
from covid_cmsf.training.run import run_training
from covid_cmsf.training.step import StepConfig, update
from tests.training.command import Command, write_config_file
from tests.training.factories import STEPS_PER_EPOCH, differing, make_config, stop_at

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

WILD = {"name": "sgd", "lr": 1e38}
METHODS: dict[str, dict[str, Any]] = {
    "infonce": {},
    "byol_asym": {"method": {"name": "byol_asym", "bank_size": 16}},
    "coclr": {"method": {"name": "coclr", "bank_size": 16, "bank_warmup": 0, "drop_self": 0.5}},
    "two_bank": {"method": {"name": "cmsf", "constraint": "two_bank", "bank_size": 16}, "labels": {"fraction": 0.5}},
    "xent": {"method": {"name": "xent"}},
    "grouped": {"batch_norm": {"groups": 2, "shuffle": True}},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_loss_that_is_not_finite_stops_the_run_and_can_be_replayed(
    name: str, clips: Path, flow_weights: Path, tmp_path: Path
) -> None:
    changes = METHODS[name]
    if name == "coclr":
        changes = {**changes, "guides": [{"weights": str(flow_weights), "modality": "flow"}]}
    with pytest.raises(NonFiniteLoss, match="covid-cmsf replay .*failed-step-.*Videos in the batch: .*v_") as caught:
        run_training(make_config(clips, optimizer=WILD, **changes), tmp_path / "run")
    (file,) = (tmp_path / "run").glob("failed-step-*.pt")
    assert str(file) in str(caught.value)
    found = replay(file)
    assert not torch.isfinite(torch.tensor(found.loss)) and found.first_bad is not None
    assert f"failed-step-{found.step:08d}-process-0.pt" == file.name
    assert found.first_bad.startswith("online.")


def test_the_command_ends_with_1_and_replay_shows_where_it_went_wrong(clips: Path, tmp_path: Path) -> None:
    config = write_config_file(make_config(clips, optimizer=WILD), tmp_path / "run.yaml")
    command = Command("train", config, "--out", tmp_path / "run", log=tmp_path / "log")
    assert command.end() == 1, command.said()
    assert "error: NonFiniteLoss: the loss of step" in command.said() and "Traceback" not in command.said()
    (file,) = (tmp_path / "run").glob("failed-step-*.pt")
    shown = CliRunner().invoke(app, ["replay", str(file)])
    assert shown.exit_code == 0 and "first bad output" in shown.output and "online." in shown.output
    wrong = CliRunner().invoke(app, ["replay", str(config)])
    assert isinstance(wrong.exception, ValueError)


def test_the_last_good_checkpoint_is_left_alone(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        run_training(make_config(clips), tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run" / "checkpoints").iterdir()}
    with pytest.raises(NonFiniteLoss):
        run_training(make_config(clips, optimizer=WILD), tmp_path / "run", accept_changes=True)
    assert {path: path.read_bytes() for path in (tmp_path / "run" / "checkpoints").iterdir()} == before


@pytest.mark.slow
def test_no_checkpoint_is_written_of_weights_that_are_not_finite(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad gradient spoils them in a step whose loss is finite, and that may be the last of an epoch."""
    run_training(make_config(clips), tmp_path / "whole")

    def update_and_spoil(components: TrainComponents, step_config: StepConfig, **lr_and_momentum: float) -> None:
        update(components, step_config, **lr_and_momentum)
        if components.banks is not None and int(components.banks.main.num_pushed) == 2 * STEPS_PER_EPOCH * 4:
            next(components.network.encoder.parameters()).data[0] = torch.nan

    with monkeypatch.context() as patch:
        patch.setattr(loop, "update", update_and_spoil)
        with pytest.raises(NonFiniteLoss, match="after step 10 .*encoder.trunk.0.weight.*are not saved"):
            run_training(make_config(clips), tmp_path / "run")
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)["progress"]["step"] == 5
    assert run_training(make_config(clips), tmp_path / "run") == "finished"
    assert differing(tmp_path / "whole", tmp_path / "run") == []


def test_a_bad_input_is_named_as_such(clips: Path, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss):
        run_training(make_config(clips, optimizer=WILD), tmp_path / "run")
    (file,) = (tmp_path / "run").glob("failed-step-*.pt")
    values = torch.load(file, weights_only=True)
    values["failed"]["view"][0, 0, 0, 0, 0] = torch.nan
    torch.save(values, file)
    assert replay(file).first_bad == "the input view"


def test_a_step_with_batch_norm_over_all_processes_can_be_replayed_in_one(clips: Path, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss):
        run_training(make_config(clips, optimizer=WILD), tmp_path / "run")
    (file,) = (tmp_path / "run").glob("failed-step-*.pt")
    expected = replay(file)
    values = torch.load(file, weights_only=True)
    values["config"]["batch_norm"]["mode"] = "sync"
    torch.save(values, file)
    assert replay(file).first_bad == expected.first_bad


def test_everything_of_a_failed_step_is_moved_to_the_device() -> None:
    failed = {"view": torch.ones(2), "guides": {"guide_flow": torch.ones(3)}, "bank_indices": [torch.ones(1), None]}
    moved = to_device({**failed, "target": None}, torch.device("meta"))
    tensors = [moved["view"], moved["guides"]["guide_flow"], moved["bank_indices"][0]]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved["bank_indices"][1] is None and moved["target"] is None


def test_the_loss_of_a_replayed_step_is_that_of_what_was_moved(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, a tensor that stayed behind ends the replay; here it is only not among those that were moved."""
    with pytest.raises(NonFiniteLoss):
        run_training(make_config(clips, optimizer=WILD), tmp_path / "run")
    (file,) = (tmp_path / "run").glob("failed-step-*.pt")
    moved: set[int] = set()
    embedded: list[EmbeddedBatch] = []

    def move(value: Any, device: torch.device) -> Any:
        value = to_device(value, device)
        if isinstance(value, dict):
            moved.update(map(id, value.values()))
        return value

    def make_batch(failed: dict[str, Any], online: torch.Tensor) -> EmbeddedBatch:
        embedded.append(make(failed, online))
        return embedded[0]

    make = failures._embedded_batch
    monkeypatch.setattr(failures, "to_device", move)
    monkeypatch.setattr(failures, "_embedded_batch", make_batch)
    replay(file)
    names = ("sources", "labels", "true_labels", "videos", "target", "guides")
    assert [name for name in names if id(getattr(embedded[0], name)) not in moved] == []


def test_other_files_cannot_be_replayed(clips: Path, rgb_weights: Path) -> None:
    with pytest.raises(ValueError, match="is not a failed step"):
        replay(rgb_weights)
