"""Pages of the documentation site that are generated while it is built (hooks of mkdocs.yml).

reference/configuration.md     from the pydantic models of the settings
reference/api.md               from covid_cmsf.__all__, for mkdocstrings
tutorial.md                    from docs/tutorial.ipynb, with the outputs that it holds
"""

import base64
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
# Headings of the API page by package, in their order there
PACKAGE_TITLES = {
    "commands": "Commands as functions",
    "projects": "Projects",
    "video_files": "Video files and frames",
    "embeddings": "Tables of embeddings",
    "search": "Search",
    "clips": "Clips",
    "views": "Views",
    "models": "Encoders and heads",
    "sharing": "Sharing encoders",
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
    """Return the settings of runs, plans and views, as `covid-cmsf config schema --markdown` prints them."""
    from covid_cmsf.cli.config import schema_markdown

    introduction = (
        "Generated from the code; `covid-cmsf config schema` prints the same. One YAML file is one run or one plan. "
        "`extends: FILE` takes over another file, and `key.subkey=value` on the command line wins over both. An "
        "unknown key is an error that suggests the right one. `covid-cmsf config list` prints the installed "
        "configurations, `covid-cmsf config show NAME` one of them with all its settings."
    )
    return f"# Configuration\n\n{introduction}\n\n{schema_markdown()}"


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
