"""`weights=hub` of timm and transformers: networks in the Hub's cache, without any network."""

import shutil
from pathlib import Path

import pytest
import torch

from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.models.named_networks import load_named_network
from tests.models.test_image_networks import TINY, no_network, tiny_weights  # noqa: F401
from tests.models.transformers_factories import save_tiny

hub = pytest.importorskip("huggingface_hub", reason="the extra huggingface_hub is not installed")
timm = pytest.importorskip("timm", reason="the extra timm is not installed")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None) -> Path:  # noqa: F811
    """An empty cache of the Hub, and nothing but it."""
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def snapshot(cache: Path, repository: str) -> Path:
    """Return the folder of a repository's commit in the cache, as a download leaves it."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    return folder / "snapshots" / COMMIT


def test_a_network_of_timm_is_read_from_the_cache(cache: Path) -> None:
    with pytest.raises(ValueError, match=f"timm could not download the weights of {TINY} "):
        load_named_network(f"timm:{TINY}?weights=hub")
    path = snapshot(cache, timm.get_pretrained_cfg(TINY).hf_hub_id) / "model.safetensors"
    tiny_weights(path, num_classes=1000)
    loaded = load_named_network(f"timm:{TINY}?weights=hub")
    expected = load_named_network(f"timm:{TINY}?weights={path}")
    assert loaded.path is None and weights_sha256(loaded.network) == weights_sha256(expected.network)
    assert loaded.network.metadata == expected.network.metadata


def test_a_network_of_transformers_is_read_from_the_cache(cache: Path, tmp_path: Path) -> None:
    address = "transformers:MCG-NJU/videomae-tiny?weights=hub"
    with pytest.raises(ValueError, match="the weights of MCG-NJU/videomae-tiny could not be downloaded"):
        load_named_network(address)
    save_tiny(tmp_path / "videomae-tiny", "VideoMAEModel")
    shutil.copytree(tmp_path / "videomae-tiny", snapshot(cache, "MCG-NJU/videomae-tiny"), dirs_exist_ok=True)
    loaded, expected = load_named_network(address), load_named_network(f"transformers:{tmp_path / 'videomae-tiny'}")
    assert loaded.path is None and loaded.network.metadata == expected.network.metadata
    clip = torch.randn(1, 3, *loaded.network.metadata.input_size)
    with torch.inference_mode():
        assert torch.equal(loaded.network(clip), expected.network(clip))
