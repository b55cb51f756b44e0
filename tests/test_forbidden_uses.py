"""No file of ours unpickles freely, reads YAML by itself, starts a shell or uses the network unasked."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("covid_cmsf", "preprocess", "tools")
SOURCES = sorted([ROOT / "hubconf.py", *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))])

# What our code does not use, by full name; a name that ends in a dot is a whole package.
UNPICKLING = (
    "pickle.load", "pickle.loads", "pickle.Unpickler", "dill.", "joblib.", "shelve.", "marshal.load", "marshal.loads",
    "torch.load", "torch.serialization.load", "torch.jit.load", "torch.hub.load", "torch.hub.load_state_dict_from_url",
)  # fmt: skip
YAML = ("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.safe_load", "yaml.safe_load_all")
SHELLS = ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "eval", "exec")
NETWORK = (
    "urllib.request.", "http.client.", "ftplib.", "socket.create_connection", "socket.socket", "requests.", "httpx.",
    "aiohttp.", "huggingface_hub.", "wandb.", "mlflow.", "sentry_sdk.", "torch.hub.download_url_to_file",
)  # fmt: skip

ALLOWED = {
    (YAML, "covid_cmsf/yaml_files.py"),  # a SafeLoader with limits
    # These are used only when asked for: weights=hub, download=True, push, runtime.wandb_mode=online.
    (NETWORK, "covid_cmsf/models/image_networks.py"),
    (NETWORK, "covid_cmsf/models/transformers_networks.py"),
    (NETWORK, "covid_cmsf/models/video_networks.py"),
    (NETWORK, "covid_cmsf/sharing/hub.py"),
    (NETWORK, "covid_cmsf/training/loggers.py"),
}
RULES = {"unpickling": UNPICKLING, "YAML": YAML, "shells": SHELLS, "network": NETWORK}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def full_names(tree: ast.AST) -> dict[str, str]:
    """Return {name in the file: what it is the name of} of the imports."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def find_forbidden(text: str, forbidden: tuple[str, ...]) -> list[str]:
    """Return the uses of forbidden names, called or not, under whatever name they were imported.

    `torch.load(..., weights_only=True)` is allowed. Beside the names: a `Loader` (of yaml), and a value of `shell`,
    `allow_pickle` or `pretrained` (of timm) that is not False.
    """
    tree = ast.parse(text)
    names, found = full_names(tree), []
    keyword_of = {SHELLS: "shell", UNPICKLING: "allow_pickle", NETWORK: "pretrained", YAML: "Loader"}[forbidden]
    allowed: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if keywords.get("weights_only") == "True":
                allowed.add(node.func)
            if keyword_of in keywords and keywords[keyword_of] != "False":
                found.append(f"line {node.lineno}: {keyword_of}={keywords[keyword_of]}")
        if isinstance(node, ast.Name | ast.Attribute) and node not in allowed:
            first, dot, rest = ast.unparse(node).partition(".")
            name = names.get(first, first) + dot + rest
            if any(f"{name}.".startswith(bad) if bad.endswith(".") else name == bad for bad in forbidden):
                found.append(f"line {node.lineno}: {name}")
    return found


def test_all_sources_are_looked_at() -> None:
    assert len(SOURCES) > 200 and {relative(path).split("/")[0] for path in SOURCES} == {*FOLDERS, "hubconf.py"}
    assert all((ROOT / name).is_file() for _, name in ALLOWED)


@pytest.mark.parametrize("rule", RULES)
def test_no_source_uses_what_is_forbidden(rule: str) -> None:
    found = {
        relative(path): uses
        for path in SOURCES
        if (RULES[rule], relative(path)) not in ALLOWED
        and (uses := find_forbidden(path.read_text(encoding="utf-8"), RULES[rule]))
    }
    assert not found


@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        ("import torch\ntorch.load(f)", UNPICKLING),
        ("import torch\ntorch.load(f, weights_only=False)", UNPICKLING),
        ("import torch as t\nread = t.load", UNPICKLING),
        ("from torch import load as read\nread(f)", UNPICKLING),
        ("def f():\n    from torch.hub import load_state_dict_from_url as get\n    get(url)", UNPICKLING),
        ("from pickle import loads\nmap(loads, data)", UNPICKLING),
        ("import joblib\njoblib.load(f)", UNPICKLING),
        ("import numpy as np\nnp.load(f, allow_pickle=True)", UNPICKLING),
        ("import yaml\nyaml.safe_load(text)", YAML),
        ("from yaml import full_load\nfull_load(text)", YAML),
        ("import subprocess\nsubprocess.run(text, shell=True)", SHELLS),
        ("import subprocess\nsubprocess.Popen(text, shell=quick)", SHELLS),
        ("from os import system\nsystem(text)", SHELLS),
        ("exec(text)", SHELLS),
        ("from urllib.request import urlopen\nurlopen(url)", NETWORK),
        ("import wandb\nwandb.init()", NETWORK),
        ("from huggingface_hub import snapshot_download\nsnapshot_download(name)", NETWORK),
        ("import timm\ntimm.create_model(name, pretrained=True)", NETWORK),
    ],
)
def test_forbidden_uses_are_found(text: str, forbidden: tuple[str, ...]) -> None:
    assert {use.partition(":")[0] for use in find_forbidden(text, forbidden)} == {f"line {len(text.splitlines())}"}


def test_allowed_uses_are_not_found() -> None:
    text = "import torch, numpy as np\ntorch.load(f, weights_only=True)\nnp.load(f)\nmodel.eval()\nnet.load(f)"
    assert not any(find_forbidden(text, names) for names in RULES.values())


@pytest.mark.parametrize("rule_and_name", sorted(ALLOWED), ids=lambda pair: pair[1])
def test_every_exception_is_needed(rule_and_name: tuple[tuple[str, ...], str]) -> None:
    rule, name = rule_and_name
    assert find_forbidden((ROOT / name).read_text(encoding="utf-8"), rule)


def test_the_required_torch_has_the_restricted_unpickler_without_its_known_holes() -> None:
    assert "\n    torch>=2.10\n" in (ROOT / "setup.cfg").read_text(encoding="utf-8")
