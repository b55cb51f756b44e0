"""Typed configuration: YAML file <- `extends` <- `key=value`, checked by a pydantic model.

    settings = load_config(TrainSettings, Path("configs/demo.yaml"), ["optimiser.lr=1e-3"])

Unknown keys, repeated keys and wrong types are errors that name the key and what would be accepted.
"""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_NODES = 100_000


class Settings(BaseModel):
    """Base of every section: frozen, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


S = TypeVar("S", bound=Settings)


def load_config(schema: type[S], path: Path | None = None, overrides: Iterable[str] = ()) -> S:
    """The settings of `schema` from a YAML file (optional) and `key.subkey=value` overrides, later ones win."""
    values = read_yaml(path) if path is not None else {}
    for override in overrides:
        _merge(values, parse_override(override))
    return validate(schema, values, place=str(path) if path is not None else "the command line")


def validate(schema: type[S], values: Mapping[str, Any], *, place: str) -> S:
    """`values` as a `schema`; ValueError with one line a fault otherwise."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        faults = [_fault(schema, dict(fault)) for fault in error.errors()]
        raise ValueError(f"configuration ({place}): " + "; ".join(faults)) from None


def read_yaml(path: Path, _seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A YAML mapping with its `extends` (a path or a list of paths, relative to the file) merged beneath it."""
    path = Path(path).resolve()
    if path in _seen:
        raise ValueError(f"configuration {path} extends itself: {' -> '.join(map(str, (*_seen, path)))}")
    if not path.is_file():
        raise FileNotFoundError(f"no configuration file {path}")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"configuration {path} is larger than {MAX_BYTES:,} bytes: is it a YAML file?")
    try:
        own = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    own = {} if own is None else own
    if not isinstance(own, dict):
        raise ValueError(f"{path} must hold a mapping (key: value), not a {type(own).__name__}")
    _check_size(own, path)
    parents = own.pop("extends", [])
    merged: dict[str, Any] = {}
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ValueError(f"{path}: extends must be a path or a list of paths, not {parents!r}")
    for parent in parents:
        _merge(merged, read_yaml(path.parent / parent, (*_seen, path)))
    _merge(merged, own)
    return merged


def parse_override(text: str) -> dict[str, Any]:
    """`a.b=value` (also `++a.b=value`) as a nested mapping; the value is read as YAML."""
    key, equals, value = text.lstrip("+").partition("=")
    if not equals or not all(key.split(".")):
        raise ValueError(f"override {text!r} is not of the form key=value or section.key=value")
    try:
        nested: Any = yaml.load(value, Loader=_StrictLoader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"override {text!r}: {value!r} is not a YAML value: {error}") from None
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return nested


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, but a key that stands twice in one mapping is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1 and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _merge(base: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Lays `new` over `base` in place: mappings merge key by key, everything else replaces."""
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value


def _check_size(values: Any, path: Path) -> None:
    nodes, level = 0, [values]
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        children = (list(v.values()) if isinstance(v, dict) else v for v in level if isinstance(v, dict | list))
        level = [child for group in children for child in group]
        if not level:
            return
        if nodes > MAX_NODES:
            raise ValueError(f"configuration {path} holds more than {MAX_NODES:,} values")
    raise ValueError(f"configuration {path} is nested deeper than {MAX_DEPTH} levels")


def _fault(schema: type[BaseModel], fault: dict[str, Any]) -> str:
    """One pydantic fault as a sentence."""
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        known = _keys_at(schema, fault["loc"][:-1])
        close = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
        return f"unknown key {key!r}; {hint}"
    if fault["type"] == "missing":
        return f"{key!r} is missing"
    return f"{key} = {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _keys_at(schema: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys that the model at `location` inside `schema` accepts."""
    for part in location:
        if isinstance(part, str) and part in schema.model_fields:
            found = _model_in(schema.model_fields[part].annotation)
            schema = found if found is not None else schema
    return list(schema.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if (found := _model_in(argument)) is not None:
            return found
    return None
