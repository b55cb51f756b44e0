"""Architecture: packages import only earlier ones, files are short and documented."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_LINES = 350
BASE_MODULES = {
    "config",
    "config_schema",
    "cores",
    "devices",
    "exit_codes",
    "files",
    "locks",
    "logs",
    "preflight",
    "verified_files",
    "yaml_files",
}
# In the order of the data; `preprocess` comes before them and imports only `clips`, the store's file format.
PACKAGES = [
    "clips",
    "views",
    "models",
    "methods",
    "training",
    "evaluation",
    "video_files",
    "pages",
    "search",
    "engines",
    "cotrain",
    "report",
    "sharing",
    "projects",
]
# They read users' video files, prepared as `preprocess` does; the others read clips only.
VIDEO_FILE_READERS = {"video_files", "search", "projects"}
# Above everything: the command line, and what `import covid_cmsf` offers besides the packages' own classes.
TOP_MODULES = {"cli", "__main__", "commands", "diagnostics", "embeddings"}
# evaluation uses checkpoints, not methods
FORBIDDEN = {("evaluation", "methods"), ("evaluation", "training")}
SOURCES = sorted(path for folder in ("covid_cmsf", "preprocess") for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_modules(path: Path) -> set[str]:
    """Return the modules that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def package_of(module: str) -> str | None:
    """Return `clips` for covid_cmsf.clips.store; None for other projects and the bare package (its version)."""
    names = module.split(".")
    if names[0] == "preprocess":
        return "preprocess"
    if names[0] != "covid_cmsf" or len(names) == 1 or names[1].startswith("__"):
        return None
    return names[1]


def allowed_imports(package: str) -> set[str]:
    if package in BASE_MODULES:
        return BASE_MODULES
    if package == "preprocess":
        return BASE_MODULES | {"preprocess", "clips"}
    if package in TOP_MODULES:
        return BASE_MODULES | TOP_MODULES | {"preprocess", *PACKAGES}
    earlier = set(PACKAGES[: PACKAGES.index(package) + 1])
    if package in VIDEO_FILE_READERS:
        earlier.add("preprocess")
    return BASE_MODULES | {other for other in earlier if (package, other) not in FORBIDDEN}


def test_every_package_has_its_position_in_the_order() -> None:
    found = {path.stem if path.is_file() else path.name for path in (ROOT / "covid_cmsf").glob("[!_]*")}
    known = BASE_MODULES | TOP_MODULES | set(PACKAGES) | {"py"}  # py.typed
    assert found - {"configs"} <= known, f"add to PACKAGES, BASE_MODULES or TOP_MODULES: {sorted(found - known)}"
    assert {"clips", "views", "models", "methods", "training", "evaluation", "cotrain"} <= found


def test_packages_import_only_earlier_packages() -> None:
    assert len(SOURCES) > 20
    violations = []
    for path in SOURCES:
        names = path.relative_to(ROOT).with_suffix("").parts
        package = "preprocess" if names[0] == "preprocess" else names[1]
        if package == "__init__":  # the public API imports from all packages, lazily
            continue
        for module in imported_modules(path):
            other = package_of(module)
            if other is not None and other not in allowed_imports(package):
                violations.append(f"{relative(path)} imports {module}")
    assert not violations, "\n".join(violations)


def test_there_are_no_catch_all_modules() -> None:
    names = {path.stem for folder in ("covid_cmsf", "preprocess", "tools") for path in (ROOT / folder).rglob("*.py")}
    assert not names & {"utils", "util", "common", "helpers", "misc"}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_module_is_short_and_has_a_docstring(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES, f"split it: more than {MAX_LINES} lines"
    assert ast.get_docstring(ast.parse(text)), "a module docstring says what the module does"


# They read their own files and say themselves what is wrong with them, or the system's.
READ_TEXT_THEMSELVES = {
    "covid_cmsf/clips/labels.py",
    "covid_cmsf/training/checkpoints.py",
    "covid_cmsf/training/monitor.py",
    "preprocess/leases.py",
    "preprocess/store.py",
}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_text_is_read_with_errors_that_name_the_file(path: Path) -> None:
    if relative(path) not in READ_TEXT_THEMSELVES:
        assert ".read_text(" not in path.read_text(encoding="utf-8"), "use covid_cmsf.files.read_text"
