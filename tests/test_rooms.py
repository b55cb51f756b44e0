"""Data goes one way through the house: a room imports only rooms before it (see the table), and no grab-bags."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
GROUND = {"atomic", "boundary", "config", "devices", "exit_codes", "hashes", "logs"}
ROOMS = ["clips", "views", "models", "methods", "training", "evaluation", "cotrain", "report"]
# evaluation knows checkpoints, not methods; models know nothing of clips
FORBIDDEN = {("evaluation", "methods"), ("evaluation", "training"), ("models", "clips"), ("models", "views")}


def imports_of(path: Path) -> set[str]:
    """The modules that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room_of(module: str) -> str | None:
    """`clips` for covid_cmsf.clips.store; None for foreign modules and the bare package (its version)."""
    parts = module.split(".")
    if parts[0] == "preprocess":
        return "preprocess"
    if parts[0] != "covid_cmsf" or len(parts) == 1 or parts[1].startswith("__"):
        return None
    return parts[1]


def allowed(room: str) -> set[str]:
    if room in GROUND:
        return GROUND
    if room == "preprocess":
        return GROUND | {"preprocess", "clips"}
    if room in ("cli", "__main__"):
        return GROUND | {"preprocess", "cli", *ROOMS}
    earlier = set(ROOMS[: ROOMS.index(room) + 1])
    return GROUND | {other for other in earlier if (room, other) not in FORBIDDEN}


def test_no_room_reaches_upstream() -> None:
    files = [*(ROOT / "covid_cmsf").rglob("*.py"), *(ROOT / "preprocess").rglob("*.py")]
    assert len(files) > 20
    faults = []
    for path in files:
        relative = path.relative_to(ROOT)
        room = "preprocess" if relative.parts[0] == "preprocess" else relative.with_suffix("").parts[1]
        if room == "__init__":
            continue
        for module in imports_of(path):
            other = room_of(module)
            if other is not None and other not in allowed(room):
                faults.append(f"{relative} imports {module}")
    assert not faults, "\n".join(faults)


def test_there_are_no_grab_bags() -> None:
    names = {path.stem for folder in ("covid_cmsf", "preprocess", "tools") for path in (ROOT / folder).rglob("*.py")}
    assert not names & {"utils", "util", "common", "helpers", "misc"}


def test_weights_are_never_unpickled_freely() -> None:
    for path in (ROOT / "covid_cmsf").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert keywords.get("weights_only") == "True", f"{path}:{node.lineno}"
