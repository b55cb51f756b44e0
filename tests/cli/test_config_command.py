"""`covid-cmsf config`: named configurations, resolved settings, differences, and the reference of all keys."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.cli.config import SchemaName, _models, resolve, schema_markdown
from covid_cmsf.config import KINDS, config_names, find_config, load_config
from covid_cmsf.config_schema import schema_paths, schema_sections
from covid_cmsf.training.config import TrainConfig
from tests.cli.test_commands import run

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


@pytest.mark.parametrize("name", list(SchemaName))
def test_every_key_has_a_description(name: SchemaName) -> None:
    settings = [setting for section in schema_sections(_models()[name]) for setting in section.settings]
    assert len(settings) > 10
    assert [setting.path for setting in settings if not setting.description] == []


def test_the_markdown_reference_has_every_key_and_one_table_per_section() -> None:
    page = schema_markdown()
    for path in schema_paths(TrainConfig):
        assert f"| `{path}` |" in page
    assert "| `schedule.epochs` | int >= 1 | `100` |" in page and "### `method`, `name: cmsf`" in page
    columns = [line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("|")]
    assert set(columns) == {5}


def test_a_whole_configuration_is_shown_as_it_is_trained() -> None:
    assert resolve("infonce") == load_config(TrainConfig, find_config("runs", "infonce")).model_dump(mode="json")
    assert resolve("infonce", ["optimizer.lr=5e-4"])["optimizer"]["lr"] == 5e-4
    assert resolve("demo")["rounds"] == 2 and resolve("cmsf")["guides"] == [{"cache": "mean", "center": True}]
    with pytest.raises(ValueError, match="did you mean 'schedule.epochs'"):
        resolve("infonce", ["epochs=3"])


@pytest.mark.parametrize("width", [80, 60])
def test_names_are_never_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = CliRunner().invoke(app, ["config", "list"]).output
    assert [name for kind in KINDS for name in config_names(kind) if f" {name} " not in shown] == []
    assert "covid-cmsf cotrain NAME" in shown


def test_the_command_lists_shows_and_compares() -> None:
    rows = json.loads(run("config", "list", "--json").stdout)
    assert [row["name"] for row in rows if row["command"] == "covid-cmsf train"] == config_names("runs")
    assert all(len(row["summary"]) > 15 for row in rows)
    assert yaml.safe_load(run("config", "show", "infonce", "seed=3").stdout)["seed"] == 3
    assert "encoder: 'c21d_tiny' -> 's3d'" in run("config", "diff", "infonce", "paper/video/infonce").stdout
    missing = run("config", "show", "zzz")
    assert missing.returncode == 2 and "choose from" in missing.stderr
