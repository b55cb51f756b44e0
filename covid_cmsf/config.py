"""Typed configuration: YAML file <- `extends` <- `key=value`, checked by a pydantic model.

    config = load_config(TrainConfig, find_config("runs", "infonce"), ["optimizer.lr=1e-3"])

Configurations installed with the package have names: `infonce` is configs/runs/infonce.yaml. Unknown keys, repeated
keys and wrong types are errors that name the key and what would be accepted.
"""

import copy
import difflib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from covid_cmsf.config_schema import format_error, resolve_location, suggest_key
from covid_cmsf.yaml_files import load_yaml, read_yaml_file

MAX_FILES = 100  # that a configuration extends

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
    files = [path for path in folder.rglob("*.yaml") if not path.name.startswith("base")]
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in files)


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


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; `extends` (a path or a list of paths, relative to the file) is merged beneath it.

    A section may have an `extends` of its own: the file's values are then merged beneath that section. `key: null`
    removes what an extended file has set.
    """
    return _read_extended(path, (), [])


def _read_extended(path: Path, seen: tuple[Path, ...], opened: list[Path]) -> dict[str, Any]:
    """Read a file and what it extends; `seen` leads to it, `opened` is all that was read so far."""
    path = Path(path).resolve()
    if path in seen:
        raise ValueError(f"configuration {path} extends itself: {' -> '.join(map(str, (*seen, path)))}")
    if not path.is_file():
        raise FileNotFoundError(f"no configuration file {path}")
    opened.append(path)
    if len(opened) > MAX_FILES:
        raise ValueError(f"configuration {opened[0]} extends more than {MAX_FILES} files, counting repetitions")
    values = read_yaml_file(path)
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise ValueError(f"{path} must contain a mapping (key: value), not a {type(values).__name__}")
    return _resolve_extends(values, path, (*seen, path), opened)


def _resolve_extends(values: dict[str, Any], path: Path, seen: tuple[Path, ...], opened: list[Path]) -> dict[str, Any]:
    """Return a copy of a mapping with the files that it and its sections extend merged beneath."""
    parents = values.get("extends", [])
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ValueError(f"{path}: extends must be a path or a list of paths, not {parents!r}")
    merged: dict[str, Any] = {}
    for parent in parents:
        deep_update(merged, _read_extended(path.parent / parent, seen, opened))
    own = {
        key: _resolve_extends(value, path, seen, opened) if isinstance(value, dict) else copy.deepcopy(value)
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
    if not value.strip():
        raise ValueError(f"override {text!r} has no value; {key}=null removes the setting, {key}='\"\"' makes it empty")
    return keys, load_yaml(value, location=f"override {text!r}: {value!r}")


def apply_override(values: dict[str, Any], text: str) -> None:
    """Set `section.key=value` in place. A mapping replaces the one there; null removes; lists are indexed from 0.

    Index 0 of a list that is not there, or empty, makes its first element: `guides.0.weights=runs/flow`.
    """
    keys, value = parse_override(text)
    place: Any = values
    for key, following in pairwise(keys):
        if isinstance(place, list):
            if key == "0" and not place:
                place.append({})
            place = place[_list_index(place, key, text)]
        else:
            if not isinstance(place.get(key), dict | list):
                place[key] = [] if following == "0" else {}
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
