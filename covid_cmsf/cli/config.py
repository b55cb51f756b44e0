"""`covid-cmsf config ...`: list, show, compare and document configurations."""

import json
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from covid_cmsf.cli.options import Config, Json, Overrides
from covid_cmsf.files import read_text

if TYPE_CHECKING:
    from pydantic import BaseModel

    from covid_cmsf.config_schema import Section

app = typer.Typer(no_args_is_help=True, help="Configurations: list the named ones, show, compare, document the keys.")


class SchemaName(str, Enum):
    """What `config schema` documents."""

    train = "train"
    plan = "plan"
    views = "views"


TITLES = {
    SchemaName.train: "Training runs: `covid-cmsf train`",
    SchemaName.plan: "Plans: `covid-cmsf cotrain`",
    SchemaName.views: "Views: `covid-cmsf views show`",
}


@app.command("list")
def list_configs(as_json: Json = False) -> None:
    """List the named configurations with the command that takes them.

    \b
    covid-cmsf config list
    """
    from covid_cmsf.config import KINDS, config_dir, config_names

    rows = [
        {"command": KINDS[kind][1], "name": name, "summary": _summary(config_dir() / kind / f"{name}.yaml")}
        for kind in KINDS
        for name in config_names(kind)
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for kind in KINDS:
        table = Table("name", "what it is", title=f"{KINDS[kind][1]} NAME", title_justify="left", expand=True)
        table.columns[0].no_wrap = True
        table.columns[0].min_width = max(len(name) for name in config_names(kind))
        for row in rows:
            if row["command"] == KINDS[kind][1]:
                table.add_row(row["name"], row["summary"])
        Console().print(table)


def _summary(path: Path) -> str:
    """Return the first comment line of a file."""
    return read_text(path).split("\n", 1)[0].removeprefix("# ")


@app.command()
def show(config: Config, overrides: Overrides = None) -> None:
    """Print a configuration as YAML, with what it extends, `key=value` and all defaults.

    \b
    covid-cmsf config show infonce optimizer.lr=5e-4
    covid-cmsf config show demo
    """
    typer.echo(yaml.safe_dump(resolve(config, overrides or ()), sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def diff(
    first: Annotated[str, typer.Argument(help="A name, a YAML file or a run folder.", show_default=False)],
    second: Annotated[str, typer.Argument(help="The same, to compare with.", show_default=False)],
) -> None:
    """Print the settings in which two configurations differ, one per line.

    \b
    covid-cmsf config diff infonce paper/video/infonce
    covid-cmsf config diff infonce runs/infonce-flow
    """
    from covid_cmsf.config import config_differences

    changed = config_differences(resolve(first), resolve(second))
    lines = [f"{key}: {before!r} -> {after!r}" for key, (before, after) in changed.items()]
    typer.echo("\n".join(lines) if lines else "no difference")


@app.command()
def schema(
    name: Annotated[
        SchemaName | None, typer.Argument(help="train, plan or views; default: all.", show_default=False)
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a documentation page.")] = False,
) -> None:
    """Print every key with its type, default and description.

    \b
    covid-cmsf config schema train
    covid-cmsf config schema --markdown > configuration.md
    """
    chosen = [name] if name is not None else list(SchemaName)
    if markdown:
        typer.echo(schema_markdown(chosen), nl=False)
        return
    from covid_cmsf.config_schema import schema_sections

    console = Console()
    for one in chosen:
        console.rule(TITLES[one].replace("`", ""))
        for section in schema_sections(_models()[one]):
            table = Table("key", "type", "default", "description", title=_title(section), title_justify="left")
            for setting in section.settings:
                default = "(required)" if setting.default is None else setting.default
                table.add_row(setting.path, setting.type, default, setting.description)
            console.print(table)


def schema_markdown(names: Iterable[SchemaName] = tuple(SchemaName)) -> str:
    """Return the reference of all keys as Markdown: a heading per section, a table of its keys."""
    from covid_cmsf.config_schema import schema_sections

    lines: list[str] = []
    for name in names:
        lines += [f"## {TITLES[name]}", ""]
        for section in schema_sections(_models()[name]):
            if section.path:
                lines += [f"### `{section.path}`" + (f", `{section.variant}`" if section.variant else ""), ""]
            lines += [section.description, ""] if section.description else []
            lines += ["| key | type | default | description |", "|---|---|---|---|"]
            for setting in section.settings:
                default = "required" if setting.default is None else f"`{setting.default}`" if setting.default else ""
                cells = (f"`{setting.path}`", setting.type, default, setting.description)
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _title(section: "Section") -> str:
    place = " ".join(part for part in (section.path, section.variant and f"({section.variant})") if part)
    return f"{place}: {section.description}" if place else section.description


def _models() -> "dict[SchemaName, type[BaseModel]]":
    from covid_cmsf.cotrain.plan import PlanConfig
    from covid_cmsf.training.config import TrainConfig
    from covid_cmsf.views.config import ViewConfig

    return {SchemaName.train: TrainConfig, SchemaName.plan: PlanConfig, SchemaName.views: ViewConfig}


def resolve(config: str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return the settings of a run, plan or views, all defaults filled in where the file is whole by itself.

    A guide or start that is left to the command line stays open: then only what the files set is returned.
    """
    from covid_cmsf.config import KINDS, apply_override, config_kind, config_names, find_config, read_yaml
    from covid_cmsf.training.run_dir import CONFIG_FILE

    folder = Path(config) / CONFIG_FILE
    kind = next((one for one in KINDS if config in config_names(one)), None)
    if kind is None and not folder.is_file() and Path(config).is_file():
        kind = config_kind(read_yaml(Path(config)))
    path = folder if kind is None and folder.is_file() else find_config(kind or "runs", config)
    values = read_yaml(path)
    for override in overrides:
        apply_override(values, override)
    name = {"plans": SchemaName.plan, "views": SchemaName.views}.get(kind or "runs", SchemaName.train)
    if name is SchemaName.views:
        values = values.get("views", {})
    return with_defaults(_models()[name], values)


def with_defaults(model: "type[BaseModel]", values: dict[str, Any]) -> dict[str, Any]:
    """Return `values` with the model's defaults beneath, unknown keys and wrong values being errors."""
    from pydantic import ValidationError

    from covid_cmsf.config import check_partial

    try:
        return model.model_validate(values).model_dump(mode="json")
    except ValidationError:  # a guide or start is missing, or there is a fault, which `check_partial` names
        pass
    check_partial(model, values, origin="config show")  # type: ignore[arg-type]
    return _fill(model, values)


def _fill(model: "type[BaseModel]", values: dict[str, Any]) -> dict[str, Any]:
    from covid_cmsf.config_schema import models_in

    filled: dict[str, Any] = {}
    for key, field in model.model_fields.items():
        given = values.get(key)
        nested = models_in(field.annotation)
        if isinstance(given, dict) and nested:
            named = [one for one in nested if given.get("name") == _fixed_name(one)]
            filled[key] = _fill((named or nested)[0], given)
        elif key in values:
            filled[key] = given
        elif not field.is_required():
            default = field.get_default(call_default_factory=True)
            filled[key] = default.model_dump(mode="json") if hasattr(default, "model_dump") else _plain(default)
    return filled


def _fixed_name(model: "type[BaseModel]") -> str | None:
    from typing import get_args

    field = model.model_fields.get("name")
    return next(iter(get_args(field.annotation)), None) if field is not None and field.is_required() else None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
