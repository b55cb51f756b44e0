"""The schema of configurations: every key with its type, default and description, and error messages that use it."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

MAX_SUGGESTIONS = 3
PLAIN_TYPES = {int: "int", float: "float", str: "str", bool: "bool", NoneType: "null", Any: "anything"}
SYMBOLS = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}


@dataclass(frozen=True)
class KeysOf:
    """Marks a plain mapping whose keys are those of a model: `Annotated[dict[str, Any], KeysOf(TrainConfig)]`."""

    model: type[BaseModel]


@dataclass(frozen=True)
class Setting:
    """One key: its dotted path, type, default (None where one must be given) and description."""

    path: str
    type: str
    default: str | None
    description: str


@dataclass(frozen=True)
class Section:
    """The keys of one model. `variant` is `name: cmsf` where several models may be used under the same key."""

    path: str
    variant: str
    description: str
    settings: tuple[Setting, ...]


def schema_sections(schema: type[BaseModel], path: str = "") -> Iterator[Section]:
    """Yield the model's own keys, then its sections, depth first; a section of a second model is not repeated."""
    yield from _sections(schema, path, "", set())


def _sections(model: type[BaseModel], path: str, variant: str, seen: set[tuple[str, type]]) -> Iterator[Section]:
    if (path, model) in seen:
        return
    seen.add((path, model))
    prefix = f"{path}." if path else ""
    settings = tuple(_setting(prefix + name, field) for name, field in model.model_fields.items())
    yield Section(path, variant, _docstring(model), settings)
    for name, field in model.model_fields.items():
        nested = models_in(field.annotation)
        for one in nested:
            tags = [tag for tag in _tags(one) if len(nested) > 1]
            place = prefix + name + (".0" if _is_list(field.annotation) else "")
            yield from _sections(one, place, tags[0] if tags else "", seen)


def _setting(path: str, field: FieldInfo) -> Setting:
    default = None
    if not field.is_required():
        default = _default_text(field.get_default(call_default_factory=True))
    text = type_text(field.annotation, tuple(field.metadata))
    return Setting(path, text, default, field.description or _implied_description(field))


def _implied_description(field: FieldInfo) -> str:
    """Describe a section by its model, and the key that chooses a section by its value."""
    nested = models_in(field.annotation)
    if len(nested) == 1:
        return _docstring(nested[0])
    if nested:
        return "one of the sections below, chosen by its name"
    chooses = field.is_required() and get_origin(field.annotation) is Literal
    return "chooses this section" if chooses else ""


def type_text(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Return a type as a user writes values of it: `int >= 1`, `step | cosine`, `list of int`."""
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return type_text(inner, (*marks, *metadata))
    limits = [limit for mark in metadata for limit in _limits(mark)]
    if annotation in PLAIN_TYPES:
        return " ".join([PLAIN_TYPES[annotation], " and ".join(limits)]).strip()
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, UnionType):
        if all(isinstance(one, type) and issubclass(one, BaseModel) for one in arguments):
            return "section"
        return " | ".join(type_text(one, metadata if one is not NoneType else ()) for one in arguments)
    if origin is dict or annotation is dict:
        return "section"
    if origin in (tuple, list):
        if origin is tuple and len(arguments) > 1 and arguments[1] is not Ellipsis:
            return f"list of {len(arguments)} {type_text(arguments[0])}"
        item = type_text(arguments[0])
        return f"list of {'sections' if item == 'section' else item}"
    return "section" if isinstance(annotation, type) and issubclass(annotation, BaseModel) else str(annotation)


def _limits(mark: Any) -> list[str]:
    """Return `>= 1` for a constraint; pydantic nests them in a `FieldInfo` inside of unions."""
    if isinstance(mark, FieldInfo):
        return [limit for inner in mark.metadata for limit in _limits(inner)]
    for kind, symbol in SYMBOLS.items():
        if isinstance(mark, kind):
            (value,) = vars(mark).values() if hasattr(mark, "__dict__") else (getattr(mark, kind.__name__.lower()),)
            return [f"{symbol} {_number(value)}"]
    return []


def _number(value: Any) -> str:
    return "2^63" if value == 2**63 else str(value)


def _default_text(value: Any) -> str:
    if isinstance(value, BaseModel):
        changed = {key: value for key, value in value.model_dump(exclude_defaults=True).items() if key != "name"}
        return "{" + ", ".join(f"{key}: {_default_text(one)}" for key, one in changed.items()) + "}" if changed else ""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_default_text, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "" if value is PydanticUndefined or value == {} else str(value)


def _docstring(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, list)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a key of this type may contain."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def schema_paths(schema: type[BaseModel], prefix: str = "", depth: int = 6) -> Iterator[str]:
    """Yield the dotted path of every key, those of `KeysOf` mappings too; list elements have the index 0."""
    for name, field in schema.model_fields.items():
        yield prefix + name
        marked = [mark.model for mark in field.metadata if isinstance(mark, KeysOf)]
        for model in [*models_in(field.annotation), *marked] if depth else []:
            place = f"{prefix}{name}.0." if _is_list(field.annotation) else f"{prefix}{name}."
            yield from schema_paths(model, place, depth - 1)


# Messages.


def format_error(schema: type[BaseModel], detail: dict[str, Any]) -> str:
    """Return one pydantic fault as a sentence."""
    keys, _ = resolve_location(schema, detail["loc"])
    key, given = ".".join(keys), detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            keys, models = resolve_location(schema, detail["loc"][:-1])
            known, unknown = [name for model in models for name in model.model_fields], str(detail["loc"][-1])
            path = ".".join([*keys, unknown])
            return f"unknown key {path!r}; {suggest_key(schema, path, known)}"
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


def suggest_key(schema: type[BaseModel], path: str, known: list[str]) -> str:
    """Suggest the same key in another section, else a similar one here, else a similar one anywhere."""
    name = path.split(".")[-1]
    paths = list(dict.fromkeys(schema_paths(schema)))
    if path in paths:  # another member of the union has it
        return _suggest(name, known)
    elsewhere = sorted((other for other in paths if other.split(".")[-1] == name), key=lambda other: other.count("."))
    if elsewhere:
        return f"did you mean {' or '.join(map(repr, elsewhere[:MAX_SUGGESTIONS]))}?"
    similar_here = difflib.get_close_matches(name, known, n=1)
    if similar_here:
        return f"did you mean {'.'.join([*path.split('.')[:-1], similar_here[0]])!r}?"
    close = difflib.get_close_matches(name, [other.split(".")[-1] for other in paths], n=1, cutoff=0.7)
    similar = [other for other in paths if close and other.split(".")[-1] == close[0]]
    return f"did you mean {similar[0]!r}?" if similar else _suggest(name, known)


def _suggest(given: str, known: list[str]) -> str:
    close = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"


def resolve_location(
    schema: type[BaseModel], location: tuple[int | str, ...]
) -> tuple[list[str], list[type[BaseModel]]]:
    """Return a fault's location as the user wrote it, and the models that are possible there.

    Pydantic inserts a name of its own for the member of a union that it has tried.
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
            models, in_union = models_in(annotation), get_origin(annotation) in (Union, UnionType)
        elif models or not in_union:
            keys.append(str(name))
    return keys, models


def _union_tags(model: type[BaseModel]) -> set[Any]:
    """Return what selects this model in a union: the values of a required field that can have no other."""
    fields = [field.annotation for field in model.model_fields.values() if field.is_required()]
    return {value for field in fields if get_origin(field) is Literal for value in get_args(field)}


def _tags(model: type[BaseModel]) -> list[str]:
    """Return `name: cmsf` for a member of a union that is chosen by its `name`."""
    fields = [(name, field.annotation) for name, field in model.model_fields.items() if field.is_required()]
    return [f"{name}: {get_args(field)[0]}" for name, field in fields if get_origin(field) is Literal]
