"""Typed configuration: YAML file <- `extends` <- `key=value`, checked by a pydantic model.

    settings = load_config(TrainSettings, Path("configs/demo.yaml"), ["optimizer.lr=1e-3"])

Unknown keys, repeated keys and wrong types are errors that name the key and what would be accepted.
"""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

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
        merge(values, parse_override(override))
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
        merge(merged, read_yaml(path.parent / parent, (*_seen, path)))
    merge(merged, own)
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


def merge(base: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Lays `new` over `base` in place: mappings merge key by key, everything else replaces."""
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merge(base[key], value)
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
    parts, _ = _walk(schema, fault["loc"])
    key, given = ".".join(parts), fault["input"]
    match fault["type"]:
        case "extra_forbidden":
            parts, models = _walk(schema, fault["loc"][:-1])
            known, unknown = [name for model in models for name in model.model_fields], str(fault["loc"][-1])
            return f"unknown key {'.'.join([*parts, unknown])!r}; {_hint(unknown, known)}"
        case "missing":
            return f"{key!r} is missing"
        case "union_tag_not_found" | "union_tag_invalid":
            facts = {name: value.replace("'", "") for name, value in fault["ctx"].items()}
            key = f"{key}.{facts['discriminator']}"
            if "tag" not in facts:
                return f"{key!r} is missing"
            return f"{key} = {facts['tag']!r}: {_hint(facts['tag'], facts['expected_tags'].split(', '))}"
        case "value_error":
            words = str(fault["ctx"]["error"])
        case _:
            words = f"{fault['msg'][0].lower()}{fault['msg'][1:]}"
    if isinstance(given, dict):  # values that do not fit together: the sentence names them
        return f"{key}: {words}" if key else words
    return f"{key} = {given!r}: {words}"


def _hint(given: str, known: list[str]) -> str:
    close = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"


def _walk(schema: type[BaseModel], location: tuple[int | str, ...]) -> tuple[list[str], list[type[BaseModel]]]:
    """A fault's location as the user wrote it, and the models that may stand there.

    Pydantic puts a word of its own into it for the member of a union that it has tried.
    """
    keys: list[str] = []
    models, in_union = [schema], False
    for part in location:
        chosen = [model for model in models if part in _tags(model)]
        owner = next((model for model in models if part in model.model_fields), None)
        if len(models) > 1 and chosen:
            models = chosen
        elif owner is not None:
            keys.append(str(part))
            annotation = owner.model_fields[str(part)].annotation
            models, in_union = _models_in(annotation), get_origin(annotation) in (Union, UnionType)
        elif models or not in_union:
            keys.append(str(part))
    return keys, models


def _tags(model: type[BaseModel]) -> set[Any]:
    """What chooses this model in a union: the value of a required field that can have no other."""
    fields = [field.annotation for field in model.model_fields.values() if field.is_required()]
    return {value for field in fields if get_origin(field) is Literal for value in get_args(field)}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
