"""Architecture: a package imports only earlier packages, no catch-all modules, weights are never unpickled freely."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
BASE_MODULES = {"config", "config_schema", "devices", "exit_codes", "files", "logs"}
# above everything: the command line, and what `import covid_cmsf` offers besides the packages' own classes
TOP_MODULES = {"cli", "__main__", "commands", "video_files"}
PACKAGES = ["clips", "views", "models", "methods", "training", "evaluation", "cotrain", "report"]
# evaluation knows checkpoints, not methods; models know nothing of clips
FORBIDDEN = {("evaluation", "methods"), ("evaluation", "training"), ("models", "clips"), ("models", "views")}


def imported_modules(path: Path) -> set[str]:
    """The modules that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def package_of(module: str) -> str | None:
    """`clips` for covid_cmsf.clips.store; None for foreign modules and the bare package (its version)."""
    parts = module.split(".")
    if parts[0] == "preprocess":
        return "preprocess"
    if parts[0] != "covid_cmsf" or len(parts) == 1 or parts[1].startswith("__"):
        return None
    return parts[1]


def allowed_imports(package: str) -> set[str]:
    if package in BASE_MODULES:
        return BASE_MODULES
    if package == "preprocess":
        return BASE_MODULES | {"preprocess", "clips"}
    if package in TOP_MODULES:
        return BASE_MODULES | TOP_MODULES | {"preprocess", *PACKAGES}
    earlier = set(PACKAGES[: PACKAGES.index(package) + 1])
    return BASE_MODULES | {other for other in earlier if (package, other) not in FORBIDDEN}


def test_packages_import_only_earlier_packages() -> None:
    files = [*(ROOT / "covid_cmsf").rglob("*.py"), *(ROOT / "preprocess").rglob("*.py")]
    assert len(files) > 20
    violations = []
    for path in files:
        relative = path.relative_to(ROOT)
        package = "preprocess" if relative.parts[0] == "preprocess" else relative.with_suffix("").parts[1]
        if package == "__init__":
            continue
        for module in imported_modules(path):
            other = package_of(module)
            if other is not None and other not in allowed_imports(package):
                violations.append(f"{relative} imports {module}")
    assert not violations, "\n".join(violations)


def test_there_are_no_catch_all_modules() -> None:
    names = {path.stem for folder in ("covid_cmsf", "preprocess", "tools") for path in (ROOT / folder).rglob("*.py")}
    assert not names & {"utils", "util", "common", "helpers", "misc"}


def test_weights_are_never_unpickled_freely() -> None:
    for path in (ROOT / "covid_cmsf").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert keywords.get("weights_only") == "True", f"{path}:{node.lineno}"
