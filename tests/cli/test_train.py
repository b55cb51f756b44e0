"""`train` and `cotrain`: configurations by name, options for common settings, `key=value` for all others."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from covid_cmsf.cli.train import load_run
from covid_cmsf.models import EncoderMetadata, create_model
from covid_cmsf.models.checkpoints.metadata import FORMAT
from tests.cli.test_commands import run

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

ROOT = Path(__file__).parent.parent.parent


def write_run(folder: Path, modality: str, channels: int) -> Path:
    """A run folder with a checkpoint, as training writes it."""
    import torch

    encoder = create_model("c21d_tiny", in_channels=channels)
    metadata = EncoderMetadata(
        encoder="c21d_tiny",
        in_channels=channels,
        input_size=(4, 36, 36),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        modality=modality,
        bn_eps=1e-5,
        trained="for a test",
    )
    state = {f"online.encoder.{key}": tensor for key, tensor in encoder.state_dict().items()}
    (folder / "checkpoints").mkdir(parents=True)
    torch.save({"format": FORMAT, "encoder": metadata.model_dump(), "state": state}, folder / "checkpoints" / "last.pt")
    return folder


def test_options_set_the_common_settings_and_overrides_have_the_last_word(tmp_path: Path) -> None:
    config, name = load_run(
        "infonce",
        ["schedule.gamma=0.5", "batch_size=12"],
        clips="my?clips=1",
        modality="flow",
        epochs=20,
        batch_size=16,
        cache_gb=2,
    )
    assert name == "infonce" and config.clips == "my?clips=1" and config.modality == "flow"
    assert config.batch_size == 12 and config.runtime.cache_gb == 2
    # the file has 60 epochs with a drop at 48
    assert (config.schedule.epochs, config.schedule.milestones, config.schedule.gamma) == (20, (16,), 0.5)


def test_a_guide_and_a_start_are_run_folders_and_the_guides_modality_is_its_own(tmp_path: Path) -> None:
    flow = write_run(tmp_path / "flow", "flow", 2)
    rgb = write_run(tmp_path / "rgb", "rgb", 3)
    config, _ = load_run("cmsf", init=rgb, guides=[flow])
    assert config.init == str(rgb / "checkpoints" / "last.pt")
    (guide,) = config.guides
    assert guide.weights == str(flow / "checkpoints" / "last.pt") and guide.modality == "flow"
    assert guide.cache == "mean" and guide.center  # as the file has it
    both, _ = load_run("cmsf", ["guides.1.layer=encoder"], init=rgb, guides=[flow, rgb])
    assert [one.modality for one in both.guides] == ["flow", "rgb"] and both.guides[1].layer == "encoder"


def test_what_is_missing_is_said_with_the_option_that_gives_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cmsf needs a guide: --guide RUN"):
        load_run("cmsf")
    with pytest.raises(FileNotFoundError, match="neither a weights file nor a run folder"):
        load_run("cmsf", guides=[tmp_path])


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("epochs=5", "did you mean 'schedule.epochs'?"),
        ("temperature=1", "did you mean 'method.temperature'?"),
        ("lr=1", "did you mean 'optimizer.lr'?"),
        ("cache_gb=1", "did you mean 'runtime.cache_gb'?"),
    ],
)
def test_unknown_keys_suggest_the_right_path(override: str, suggestion: str) -> None:
    with pytest.raises(ValueError) as caught:
        load_run("infonce", [override])
    assert suggestion in str(caught.value)


def test_plans_suggest_the_section_that_has_the_key() -> None:
    result = run("cotrain", "demo", "clips=x", "--dry-run")
    assert result.returncode == 2 and "did you mean 'defaults.clips'" in result.stderr


def test_a_plan_given_to_train_and_the_reverse_is_one_line() -> None:
    for command, name, advice in (("train", "demo", "cotrain demo"), ("cotrain", "infonce", "train infonce")):
        result = run(command, name)
        assert result.returncode == 2 and f"use covid-cmsf {advice}" in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_section_is_replaced_and_a_run_folder_resumed(tmp_path: Path) -> None:
    values = {"clips": "x", "method": {"name": "xent"}, "optimizer": {"name": "sgd", "lr": 1.0}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    config, _ = load_run(str(tmp_path))
    assert config.optimizer.name == "sgd"
    replaced, _ = load_run(str(tmp_path), ["optimizer={}"])
    assert replaced.optimizer.name == "adam"


@pytest.mark.slow
def test_an_installed_package_has_its_configurations(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("covid_cmsf", "preprocess", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(source)], check=True, capture_output=True)
    shutil.rmtree(source)
    code = "from covid_cmsf.config import config_dir, config_names as names; print(config_dir(), *map(len, map(names, "
    code += "('runs', 'plans', 'views'))))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site")}, capture_output=True
    ).stdout.decode()
    from covid_cmsf.config import config_names

    counts = " ".join(str(len(config_names(kind))) for kind in ("runs", "plans", "views"))
    assert found.strip() == f"{tmp_path / 'site' / 'covid_cmsf' / 'configs'} {counts}"
