"""An index of clips with odd names, with encoders, and its server."""

import json
import shutil
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from covid_cmsf.search.build import index_videos
from covid_cmsf.search.duplicates import Duplicate
from covid_cmsf.search.page.copies import keep_copies
from covid_cmsf.search.page.explorer import Explorer
from covid_cmsf.search.page.serve import serve_page
from covid_cmsf.search.page.write import write_page
from tests.evaluation.factories import small_checkpoint
from tests.search.factories import quick_encoder


@pytest.fixture(scope="session")
def page_index(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the 48 videos of the store, by RGB and flow, with known copies. Copy it to change it."""
    folder = tmp_path_factory.mktemp("explore")
    weights = [small_checkpoint(folder / f"{name}.safetensors", name) for name in ("rgb", "flow")]
    encoders = [quick_encoder(path, num_windows=2) for path in weights]
    store = shutil.copytree(clips, folder / "clips")
    info = json.loads((store / "store.json").read_text())
    info["flow"] |= encoders[0].frames.model_dump(mode="json")["flow"]  # that a dropped file can have too
    (store / "store.json").write_text(json.dumps(info))
    index_videos(store, encoders, folder / "index")
    pairs = [Duplicate(0, 1, "copy", 0.9, 1.0, (0.0, 0.4), (0.0, 0.4), 1.0, False)]
    pairs += [Duplicate(2, 5, "contained", 0.8, 0.7, (0.1, 0.4), (0.0, 0.3), 1.0, True)]
    pairs += [Duplicate(3, 6, "shared", 0.8, 0.3, (0.0, 0.2), (0.0, 0.2), 1.0, False)]
    keep_copies(folder / "index", pairs)
    return folder / "index"


@pytest.fixture(scope="session")
def static_page(page_index: Path, clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of that index as files. Read only."""
    out = tmp_path_factory.mktemp("explore") / "page"
    write_page(page_index, clips, out)
    return out


@pytest.fixture(scope="session")
def served(page_index: Path) -> Iterator[tuple[Explorer, ThreadingHTTPServer]]:
    """The page of that index on a free port."""
    explorer = Explorer(page_index, max_upload=3_000_000)
    server = serve_page(explorer, 0)
    yield explorer, server
    server.shutdown()
    server.server_close()
