"""View settings from a file: one of their own, or the section `views` of a training run's."""

from collections.abc import Sequence
from pathlib import Path

from covid_cmsf.config import load_config, parse_override, read_yaml, validate
from covid_cmsf.views.settings import ViewSettings


def load_view_settings(path: Path | None, overrides: Sequence[str] = ()) -> ViewSettings:
    """Settings of the file (or the defaults), with `key=value` or `views.key=value` overrides."""
    plain = [text.lstrip("+").removeprefix("views.") for text in overrides]
    values = read_yaml(path) if path is not None else {}
    if "views" not in values:
        return load_config(ViewSettings, path, plain)
    if not isinstance(values["views"], dict):
        raise ValueError(f"{path}: the section views must be a mapping, not {values['views']!r}")
    section = dict(values["views"])
    for text in plain:
        section.update(parse_override(text))
    return validate(ViewSettings, section, place=f"{path}, section views")
