"""Pages of the documentation site that are generated while it is built (hooks of mkdocs.yml).

reference/configuration.md     from the pydantic models of the settings
reference/api.md               from covid_cmsf.__all__, for mkdocstrings
tutorial.md                    from docs/tutorial.ipynb, with the outputs that it holds
"""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import nbformat
import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
# Headings of the API page by package, in their order there
PACKAGE_TITLES = {
    "commands": "Commands as functions",
    "video_files": "Video files and frames",
    "clips": "Clips",
    "views": "Views",
    "models": "Encoders and heads",
    "methods": "Losses, memory bank, constraints",
    "training": "Training",
    "evaluation": "Evaluation",
    "cotrain": "Plans",
    "preprocess": "Optical flow",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; called by mkdocs."""
    for uri, content in generate().items():
        files.append(File.generated(config, uri, content=content))
    notebook = files.get_file_from_path("tutorial.ipynb")
    if notebook is not None:  # the page has its place
        files.remove(notebook)
    return files


def generate() -> dict[str, str | bytes]:
    """Return every generated file of the site by its path below docs/."""
    return {
        "reference/configuration.md": configuration_page(),
        "reference/api.md": api_page(),
        **notebook_files(NOTEBOOK),
    }


def configuration_page() -> str:
    """Return the settings of training runs and plans as Markdown tables."""
    from covid_cmsf.cotrain.plan import PlanConfig
    from covid_cmsf.training.config import TrainConfig

    lines = [
        "# Configuration",
        "",
        "Generated from the code. One YAML file is one run (`covid-cmsf train`) or one plan (`covid-cmsf cotrain`). "
        "`extends: FILE` takes over another file, and `key.subkey=value` on the command line wins over both. "
        "An unknown key is an error that suggests the right one.",
        "",
        "## Training run",
        "",
        *_sections(TrainConfig, ""),
        "## Plan",
        "",
        *_sections(PlanConfig, ""),
    ]
    return "\n".join(lines)


def _sections(model: type[BaseModel], prefix: str, seen: set[str] | None = None) -> Iterator[str]:
    """Yield one table of a model's fields, then a section per field that is itself a model; each path once."""
    seen = set() if seen is None else seen
    nested = {name: models for name, field in model.model_fields.items() if (models := _models(field.annotation))}
    yield from (_first_line(model), "", "| key | values | default | |", "|---|---|---|---|")
    for name, field in model.model_fields.items():
        values = "see below" if name in nested else _cell(_type_name(field))
        yield f"| `{name}` | {values} | {_default(field)} | {_cell(field.description or '')} |"
    yield ""
    for name, models in nested.items():
        for one in models:
            tags = get_args(one.model_fields["name"].annotation) if len(models) > 1 else ()
            title = f"`{prefix}{name}`" + "".join(f": `{tag}`" for tag in tags)
            if title not in seen:  # `method.head` is the same for every method
                seen.add(title)
                yield from (f"### {title}", "", *_sections(one, f"{prefix}{name}.", seen))


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the settings classes inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _type_name(field: FieldInfo) -> str:
    """Return an annotation as a reader writes it: choices, or int, float, str, true/false, list, mapping."""
    names = list(dict.fromkeys(_type_names(field.annotation)))
    limits = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(one, name)}"
        for one in field.metadata
        for name, sign in limits.items()
        if getattr(one, name, None) is not None
    ]
    return " or ".join(names) + (f", {', '.join(bounds)}" if bounds else "")


def _type_names(annotation: Any) -> Iterator[str]:
    plain = {int: "int", float: "float", str: "str", bool: "true or false", type(None): "null"}
    origin = getattr(annotation, "__origin__", None)
    if annotation in plain:
        yield plain[annotation]
    elif origin is dict:
        yield "mapping"
    elif origin in (tuple, list):
        yield "list"
    elif "Literal" in str(origin) or str(annotation).startswith("typing.Literal"):
        yield from (f"`{choice}`" for choice in get_args(annotation))
    else:
        arguments = get_args(annotation)
        # Annotated[int, Field(ge=0)]: only the first argument is a type
        for argument in arguments[:1] if hasattr(annotation, "__metadata__") else arguments:
            yield from _type_names(argument)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):  # only what differs from the section's own defaults
        value = value.model_dump(mode="json", exclude_defaults=True)
        if not value:
            return ""
    value = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...")
    return f"`{text}`"


def _first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def api_page() -> str:
    """Return mkdocstrings directives for the public names, grouped by package."""
    import covid_cmsf

    groups: dict[str, list[str]] = {}
    for name in covid_cmsf.__all__:
        value = getattr(covid_cmsf, name)
        package = value.__module__.removeprefix("covid_cmsf.").split(".")[0]
        groups.setdefault(package, []).append(f"{value.__module__}.{value.__qualname__}")
    lines = [
        "# Python API",
        "",
        "Generated from the docstrings. `import covid_cmsf as cc` gives all of these names; nothing is loaded before a "
        "name is used. Other modules may change without notice.",
        "",
    ]
    for package in sorted(groups, key=list(PACKAGE_TITLES).index):
        lines += [f"## {PACKAGE_TITLES[package]}", ""]
        for path in groups[package]:
            lines += [f"::: {path}", ""]
    return "\n".join(lines)


def notebook_files(path: Path) -> dict[str, str | bytes]:
    """Return the notebook as a Markdown page, and the pictures of its outputs."""
    notebook = nbformat.read(path, as_version=4)
    files: dict[str, str | bytes] = {}
    lines: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            lines += [cell.source, ""]
            continue
        lines += ["```python", cell.source, "```", ""]
        text = ""
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"tutorial-{len(files) + 1}.png"
                files[name] = base64.b64decode(data["image/png"])
                lines += [f"![Output of the cell above]({name})", ""]
            else:
                text += output.get("text") or data.get("text/plain", "")
        if text:
            lines += ["```text", text.rstrip(), "```", ""]
    return {"tutorial.md": "\n".join(lines), **files}
