"""Creating a clip store, or making sure that an existing one was begun with the same settings."""

import logging
import os
import uuid
from pathlib import Path

from covid_cmsf.atomic import write_text_atomic
from covid_cmsf.clips.store_info import StoreInfo, info_text, read_info

logger = logging.getLogger(__name__)


def prepare_store(store: Path, info: StoreInfo) -> StoreInfo:
    """Writes store.json, exactly once whoever comes first; returns what it says.

    Settings that differ are an error that lists them. Another version of the flow software is noted in store.json
    and in the log: values may differ slightly (OpenCV 4.12 against 5.0: 0.009 px on average), files stay comparable.
    """
    if store.exists() and not store.is_dir():
        raise NotADirectoryError(f"{store} is a file; --out needs a folder")
    if store.is_dir() and not (store / "store.json").exists() and _foreign_content(store):
        raise FileExistsError(f"{store} has files but is no clip store; choose an empty or new folder for --out")
    store.mkdir(parents=True, exist_ok=True)
    temporary = store / f".{uuid.uuid4().hex}.new"
    try:
        temporary.write_text(info_text(info), encoding="utf-8")
        os.link(temporary, store / "store.json")
        return info
    except FileExistsError:
        return _same_settings(store, read_info(store), info)
    finally:
        temporary.unlink(missing_ok=True)


def _foreign_content(store: Path) -> bool:
    return any(not path.name.startswith(".") for path in store.iterdir())


def _same_settings(store: Path, old: StoreInfo, new: StoreInfo) -> StoreInfo:
    differences = [
        f"{key} is {was!r} in the store, {now!r} now"
        for key, was, now in _differences(old.model_dump(mode="json"), new.model_dump(mode="json"))
        if key not in ("software", "flow.version")
    ]
    if differences:
        raise ValueError(
            f"{store} was begun with other settings: {'; '.join(differences)}. Use the same settings or another --out"
        )
    if old.flow is not None and new.flow is not None and new.flow.version not in old.flow.version.split(" | "):
        logger.warning("flow so far was made with %s, from now on with %s", old.flow.version, new.flow.version)
        both = old.flow.model_copy(update={"version": f"{old.flow.version} | {new.flow.version}"})
        old = old.model_copy(update={"flow": both})
        write_text_atomic(store / "store.json", info_text(old))
    return old


def _differences(old: dict, new: dict, prefix: str = "") -> list[tuple[str, object, object]]:
    found: list[tuple[str, object, object]] = []
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if isinstance(was, dict) and isinstance(now, dict):
            found += _differences(was, now, f"{prefix}{key}.")
        elif was != now:
            found.append((prefix + key, was, now))
    return found
