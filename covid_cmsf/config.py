"""Typed configuration: YAML file <- `extends` <- `key=value`, checked by a pydantic model.

    config = load_config(TrainConfig, Path("configs/demo.yaml"), ["optimizer.lr=1e-3"])

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


class Config(BaseModel):
    """Base of every section: frozen, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


S = TypeVar("S", bound=Config)


def load_config(schema: type[S], path: Path | None = None, overrides: Iterable[str] = ()) -> S:
    """The settings of `schema` from a YAML file (optional) and `key.subkey=value` overrides, later ones win."""
    values = read_yaml(path) if path is not None else {}
    for override in overrides:
        deep_update(values, parse_override(override))
    return validate(schema, values, origin=str(path) if path is not None else "the command line")


def validate(schema: type[S], values: Mapping[str, Any], *, origin: str) -> S:
    """`values` as a `schema`; ValueError with one line a fault otherwise."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        messages = [_format_error(schema, dict(detail)) for detail in error.errors()]
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
                keys, models = _resolve_location(schema, detail["loc"])
                known = list(dict.fromkeys(name for model in models for name in model.model_fields))
                unknown = [key for key in detail["input"] if key not in known]
                messages += [f"unknown key {'.'.join([*keys, key])!r}; {_suggest(key, known)}" for key in unknown]
            elif detail["type"] != "missing" and not (
                detail["type"] == "value_error" and isinstance(detail["input"], dict)
            ):
                messages.append(_format_error(schema, dict(detail)))
        if messages:
            raise ValueError(f"configuration ({origin}): " + "; ".join(messages)) from None


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
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a mapping (key: value), not a {type(values).__name__}")
    _check_size(values, path)
    parents = values.pop("extends", [])
    merged: dict[str, Any] = {}
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ValueError(f"{path}: extends must be a path or a list of paths, not {parents!r}")
    for parent in parents:
        deep_update(merged, read_yaml(path.parent / parent, (*_seen, path)))
    deep_update(merged, values)
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
    *parents, last = key.split(".")
    override: dict[str, Any] = {last: nested}
    for name in reversed(parents):
        override = {name: override}
    return override


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, but a key that stands twice in one mapping is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1 and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def deep_update(base: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Lays `new` over `base` in place: mappings merge key by key, everything else replaces."""
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            deep_update(base[key], value)
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


def _format_error(schema: type[BaseModel], detail: dict[str, Any]) -> str:
    """One pydantic fault as a sentence."""
    keys, _ = _resolve_location(schema, detail["loc"])
    key, given = ".".join(keys), detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            keys, models = _resolve_location(schema, detail["loc"][:-1])
            known, unknown = [name for model in models for name in model.model_fields], str(detail["loc"][-1])
            return f"unknown key {'.'.join([*keys, unknown])!r}; {_suggest(unknown, known)}"
        case "missing":
            return f"{key!r} is missing"
        case "union_tag_not_found" | "union_tag_invalid":
            context = {name: value.replace("'", "") for name, value in detail["ctx"].items()}
            key = f"{key}.{context['discriminator']}"
            if "tag" not in context:
                return f"{key!r} is missing"
            return f"{key} = {context['tag']!r}: {_suggest(context['tag'], context['expected_tags'].split(', '))}"
        case "value_error":
            message = str(detail["ctx"]["error"])
        case _:
            message = f"{detail['msg'][0].lower()}{detail['msg'][1:]}"
    if isinstance(given, dict):  # values that do not fit together: the sentence names them
        return f"{key}: {message}" if key else message
    return f"{key} = {given!r}: {message}"


def _suggest(given: str, known: list[str]) -> str:
    close = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"


def _resolve_location(
    schema: type[BaseModel], location: tuple[int | str, ...]
) -> tuple[list[str], list[type[BaseModel]]]:
    """A fault's location as the user wrote it, and the models that may stand there.

    Pydantic puts a word of its own into it for the member of a union that it has tried.
    """
    keys: list[str] = []
    models, in_union = [schema], False
    for name in location:
        tagged = [model for model in models if name in _union_tags(model)]
        owner = next((model for model in models if name in model.model_fields), None)
        if len(models) > 1 and tagged:
            models = tagged
        elif owner is not None:
            keys.append(str(name))
            annotation = owner.model_fields[str(name)].annotation
            models, in_union = _models_in(annotation), get_origin(annotation) in (Union, UnionType)
        elif models or not in_union:
            keys.append(str(name))
    return keys, models


def _union_tags(model: type[BaseModel]) -> set[Any]:
    """What chooses this model in a union: the value of a required field that can have no other."""
    fields = [field.annotation for field in model.model_fields.values() if field.is_required()]
    return {value for field in fields if get_origin(field) is Literal for value in get_args(field)}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
