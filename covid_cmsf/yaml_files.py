"""Read YAML safely: no code is run, no key may be repeated, and size, nesting and aliases are limited."""

from pathlib import Path
from typing import Any

import yaml

from covid_cmsf.files import read_text

MAX_BYTES = 500_000
MAX_DEPTH = 20
MAX_NODES = 20_000  # keys and values, those that aliases repeat included
MERGE_TAG = "tag:yaml.org,2002:merge"


def read_yaml_file(path: Path) -> Any:
    """Return the contents of a YAML file; ValueError in one line that names it."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} is larger than {MAX_BYTES:,} bytes: is it a YAML file?")
    return load_yaml(read_text(path), location=str(path))


def load_yaml(text: str, *, location: str) -> Any:
    """Return the value of a YAML text; ValueError in one line that names `location`."""
    try:
        return yaml.load(text, Loader=_LimitedLoader)  # noqa: S506 (a SafeLoader)
    except _LimitError as error:
        raise ValueError(f"{location} {error}") from None
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark is not None else ""
        raise ValueError(f"{location} is not valid YAML: {error.problem or error.context}{line}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{location} is not valid YAML: {' '.join(str(error).split())}") from None


class _LimitError(ValueError):
    """The file is too large or too deep."""


class _LimitedLoader(yaml.SafeLoader):
    """The safe loader with limits, which are checked while nodes are read: before an alias could be expanded."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._num_nodes = 0
        # {id of a node: its number of nodes and of levels}, with aliases expanded
        self._extent: dict[int, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        self._num_nodes += 1
        self._check(self._num_nodes, self._depth)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and id(node) not in self._extent:
            if is_alias:
                raise _LimitError("has an alias that contains itself")
            values = node.value if isinstance(node, yaml.CollectionNode) else []
            children = [child for entry in values for child in (entry if isinstance(entry, tuple) else (entry,))]
            extents = [self._extent[id(child)] for child in children]
            levels = max((extent[1] for extent in extents), default=0)
            self._extent[id(node)] = 1 + sum(extent[0] for extent in extents), 1 + levels
            self._check(*self._extent[id(node)])
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE_TAG:
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} is repeated", key.start_mark
                    )
                seen.add((key.tag, key.value))
        return node

    def _check(self, num_nodes: int, levels: int) -> None:
        if num_nodes > MAX_NODES:
            raise _LimitError(f"has more than {MAX_NODES:,} keys and values")
        if levels > MAX_DEPTH:
            raise _LimitError(f"is nested deeper than {MAX_DEPTH} levels")
