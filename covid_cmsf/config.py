"""Typed configuration: YAML file <- `extends` <- `key=value`, checked by a pydantic model.

    config = load_config(TrainConfig, find_config("runs", "infonce"), ["optimizer.lr=1e-3"])

Configurations installed with the package have names: `infonce` is configs/runs/infonce.yaml. Unknown keys, repeated
keys and wrong types are errors that name the key and what would be accepted.
"""

import copy
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from covid_cmsf.config_schema import format_error, resolve_location, suggest_key
from covid_cmsf.files import read_text

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_NODES = 100_000

Kind = Literal["runs", "plans", "views"]
KINDS: dict[Kind, tuple[str, str]] = {  # what a file of this folder is, and the command that takes it
    "runs": ("a training run", "covid-cmsf train"),
    "plans": ("a plan", "covid-cmsf cotrain"),
    "views": ("views", "covid-cmsf views show CLIPS --config"),
}


class Config(BaseModel):
    """Base of every section: frozen, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


S = TypeVar("S", bound=Config)


def load_config(schema: type[S], path: Path | None = None, overrides: Iterable[str] = ()) -> S:
    """Return the settings of `schema` from a YAML file (optional) and `key.subkey=value` overrides; later ones win."""
    values = read_yaml(path) if path is not None else {}
    for override in overrides:
        apply_override(values, override)
    return validate(schema, values, origin=str(path) if path is not None else "the command line")


def validate(schema: type[S], values: Mapping[str, Any], *, origin: str) -> S:
    """Return `values` as a `schema`; raise ValueError with one sentence per fault."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        messages = [format_error(schema, dict(detail)) for detail in error.errors()]
        raise ValueError(f"configuration ({origin}): " + "; ".join(messages)) from None


def check_partial(schema: type[Config], values: Mapping[str, Any], *, origin: str) -> None:
    """Raise ValueError for unknown keys and wrong values in some of the values of a `schema`.

    Missing keys are accepted, and whether values fit together is left to `validate`, which sees all of them.
    """
    try:
        schema.model_validate(values)
    except ValidationError as error:
        messages: list[str] = []
        for detail in error.errors():
            if detail["type"] == "union_tag_not_found":  # no name: accept the keys of every member of the union
                keys, models = resolve_location(schema, detail["loc"])
                known = list(dict.fromkeys(name for model in models for name in model.model_fields))
                unknown = [key for key in detail["input"] if key not in known]
                messages += [
                    f"unknown key {'.'.join([*keys, key])!r}; {suggest_key(schema, '.'.join([*keys, key]), known)}"
                    for key in unknown
                ]
            elif detail["type"] != "missing" and not (
                detail["type"] == "value_error" and isinstance(detail["input"], dict)
            ):
                messages.append(format_error(schema, dict(detail)))
        if messages:
            raise ValueError(f"configuration ({origin}): " + "; ".join(messages)) from None


# Configurations by name.


def config_dir() -> Path:
    """Return the folder of the named configurations: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def config_names(kind: Kind) -> list[str]:
    """Return the names of the configurations of a kind; `base*.yaml` are fragments and have none."""
    folder = config_dir() / kind
    files = [path for path in sorted(folder.rglob("*.yaml")) if not path.name.startswith("base")]
    return [path.relative_to(folder).with_suffix("").as_posix() for path in files]


def find_config(kind: Kind, name: str | Path, *, relative_to: Path = Path()) -> Path:
    """Return the file of a configuration given by name or by path; raise an error for a file of another kind."""
    path = relative_to / name
    if path.is_file():
        found = config_kind(read_yaml(path))
        if found is not None and found != kind and kind != "views":  # any file may have a section `views`
            raise ValueError(f"{path} is {KINDS[found][0]}: use {KINDS[found][1]} {name}")
        return path
    text = Path(name).as_posix()
    if text in config_names(kind):
        return config_dir() / kind / f"{text}.yaml"
    for other in KINDS:
        if text in config_names(other):
            raise ValueError(f"{text!r} is {KINDS[other][0]}: use {KINDS[other][1]} {text}")
    if path.suffix in (".yaml", ".yml"):
        raise FileNotFoundError(f"no configuration file {path}")
    raise FileNotFoundError(
        f"no configuration {text!r}: neither a file nor a name; {suggest(text, config_names(kind))}"
    )


def config_name(kind: Kind, path: Path) -> str:
    """Return the name of a configuration file; that of a file elsewhere is its stem."""
    folder = (config_dir() / kind).resolve()
    path = path.resolve()
    return path.relative_to(folder).with_suffix("").as_posix() if path.is_relative_to(folder) else path.stem


def config_kind(values: Mapping[str, Any]) -> Kind | None:
    """Tell from its keys what a configuration is; None for a fragment."""
    if {"stages", "rounds"} & set(values):
        return "plans"
    if "method" in values:
        return "runs"
    return "views" if set(values) == {"views"} else None


def suggest(given: str, known: list[str]) -> str:
    """Return `did you mean ...?`, or all that is known when nothing is close."""
    last = [name for name in known if name.split("/")[-1] == given]
    close = last or difflib.get_close_matches(given, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"


# Files.


def read_yaml(path: Path, _seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a YAML mapping; `extends` (a path or a list of paths, relative to the file) is merged beneath it.

    A section may have an `extends` of its own: the file's values are then merged beneath that section. `key: null`
    removes what an extended file has set.
    """
    path = Path(path).resolve()
    if path in _seen:
        raise ValueError(f"configuration {path} extends itself: {' -> '.join(map(str, (*_seen, path)))}")
    if not path.is_file():
        raise FileNotFoundError(f"no configuration file {path}")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"configuration {path} is larger than {MAX_BYTES:,} bytes: is it a YAML file?")
    try:
        values = yaml.load(read_text(path), Loader=_StrictLoader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise ValueError(f"{path} must contain a mapping (key: value), not a {type(values).__name__}")
    _check_size(values, path)
    return _resolve_extends(values, path, (*_seen, path))


def _resolve_extends(values: dict[str, Any], path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """Return a copy of a mapping with the files that it and its sections extend merged beneath."""
    parents = values.get("extends", [])
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ValueError(f"{path}: extends must be a path or a list of paths, not {parents!r}")
    merged: dict[str, Any] = {}
    for parent in parents:
        deep_update(merged, read_yaml(path.parent / parent, seen))
    own = {
        key: _resolve_extends(value, path, seen) if isinstance(value, dict) else copy.deepcopy(value)
        for key, value in values.items()
        if key != "extends"
    }
    deep_update(merged, own)
    return merged


# Overrides.


def parse_override(text: str) -> tuple[list[str], Any]:
    """Split `a.b=value` (also `++a.b=value`) into its keys and its value, which is read as YAML."""
    key, equals, value = text.lstrip("+").partition("=")
    keys = key.split(".")
    if not equals or not all(keys):
        raise ValueError(f"override {text!r} is not of the form key=value or section.key=value")
    try:
        return keys, yaml.load(value, Loader=_StrictLoader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"override {text!r}: {value!r} is not a YAML value: {error}") from None


def apply_override(values: dict[str, Any], text: str) -> None:
    """Set `section.key=value` in place. A mapping replaces the one there; null removes; lists are indexed from 0."""
    keys, value = parse_override(text)
    place: Any = values
    for key in keys[:-1]:
        if isinstance(place, list):
            place = place[_list_index(place, key, text)]
        else:
            if not isinstance(place.get(key), dict | list):
                place[key] = {}
            place = place[key]
    last: Any = _list_index(place, keys[-1], text) if isinstance(place, list) else keys[-1]
    if value is None and (isinstance(place, list) or last in place):
        del place[last]
    else:
        place[last] = value


def _list_index(values: list[Any], key: str, text: str) -> int:
    if not key.isdigit() or int(key) >= len(values):
        accepted = f"0 to {len(values) - 1}" if values else "none: it is empty"
        raise ValueError(f"override {text!r}: {key!r} is no index of this list; choose from {accepted}")
    return int(key)


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, but a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1 and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is repeated", node.start_mark)
        return super().construct_mapping(node, deep)


def deep_update(base: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Merge `new` into `base` in place: mappings key by key; everything else replaces; None removes what is there."""
    for key, value in new.items():
        if value is None and key in base:
            del base[key]
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            deep_update(base[key], value)
        else:
            base[key] = value


def config_differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[object, object]]:
    """Return {dotted key: (old value, new value)} of all values that differ between two nested mappings."""
    differences: dict[str, tuple[object, object]] = {}
    for key in dict.fromkeys((*old, *new)):
        old_value, new_value = old.get(key), new.get(key)
        if isinstance(old_value, dict) and isinstance(new_value, dict):
            differences |= config_differences(old_value, new_value, f"{prefix}{key}.")
        elif old_value != new_value:
            differences[f"{prefix}{key}"] = old_value, new_value
    return differences


def _check_size(values: Any, path: Path) -> None:
    nodes, level = 0, [values]
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        children = (list(v.values()) if isinstance(v, dict) else v for v in level if isinstance(v, dict | list))
        level = [child for group in children for child in group]
        if not level:
            return
        if nodes > MAX_NODES:
            raise ValueError(f"configuration {path} has more than {MAX_NODES:,} values")
    raise ValueError(f"configuration {path} is nested deeper than {MAX_DEPTH} levels")
