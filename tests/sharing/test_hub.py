"""Shared folders and the hub, without a network: a folder on disk, the hub's cache, and a stand-in for its API."""

import importlib
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import covid_cmsf as cc
from covid_cmsf.cli.app import app
from covid_cmsf.models import load_weights
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.sharing import hub
from covid_cmsf.verified_files import DamagedFileError
from tests.evaluation.factories import SIZE, small_checkpoint

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return small_checkpoint(tmp_path / "encoder.safetensors")


@pytest.fixture
def shared(weights: Path, tmp_path: Path) -> Path:
    return cc.save_pretrained(weights, tmp_path / "shared", license="apache-2.0")


class StandInApi:
    """The hub as a folder: the only thing in these tests that is not what users run."""

    root: Path
    private: dict[str, bool]

    def __init__(self, **options: Any) -> None:
        self.options = options

    def repo_exists(self, repo_id: str) -> bool:
        return repo_id in self.private

    def create_repo(self, repo_id: str, *, private: bool) -> None:
        self.private[repo_id] = private

    def model_info(self, repo_id: str) -> SimpleNamespace:
        return SimpleNamespace(private=self.private[repo_id])

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, allow_patterns: list[str], commit_message: str
    ) -> SimpleNamespace:
        (self.root / repo_id).mkdir(parents=True)
        for name in allow_patterns:
            shutil.copy(folder_path / name, self.root / repo_id / name)
        return SimpleNamespace(commit_url=f"hub:{repo_id}: {commit_message}")


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[StandInApi]:
    monkeypatch.setattr("huggingface_hub.HfApi", StandInApi)
    monkeypatch.setattr(StandInApi, "root", tmp_path / "hub", raising=False)
    monkeypatch.setattr(StandInApi, "private", {}, raising=False)
    return StandInApi


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def features(encoder: cc.Encoder) -> torch.Tensor:
    clip = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return encoder(clip)  # type: ignore[no-any-return]


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.mark.usefixtures("no_network")
def test_a_folder_gives_back_the_same_features_to_the_last_bit(weights: Path, shared: Path) -> None:
    encoder, original = cc.from_pretrained(shared), cc.load_encoder(weights)
    assert torch.equal(features(encoder), features(original))
    assert encoder.metadata == original.metadata and not encoder.training
    assert weights_sha256(encoder) in (shared / "README.md").read_text()
    frames = torch.zeros(6, 48, 64, 3, dtype=torch.uint8)
    assert torch.equal(encoder.preprocess(frames), original.preprocess(frames))


def test_other_commands_take_the_folder_where_they_take_weights(weights: Path, shared: Path) -> None:
    assert torch.equal(features(cc.load_encoder(shared)), features(cc.load_encoder(weights)))
    assert run("weights", "show", shared).exit_code == 0


def test_the_projection_head_is_shared_when_asked_for(weights: Path, tmp_path: Path) -> None:
    encoder = cc.load_encoder(weights)
    assert encoder.metadata is not None
    head = cc.MLP(cc.HeadLayout(sizes=(encoder.num_features, 32, 16), batch_norm=True, output_batch_norm=False))
    metadata = encoder.metadata.model_copy(update={"projector": head.layout})
    cc.save_encoder(tmp_path / "with-head.safetensors", encoder, metadata, projector=head)
    folder = cc.save_pretrained(tmp_path / "with-head.safetensors", tmp_path / "shared", keep_head=True)
    assert torch.equal(features(cc.from_pretrained(folder)), features(encoder))
    found = load_weights(folder, keep_head=True).projector
    assert found is not None
    expected = head.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in found.state_dict().items())


@pytest.mark.parametrize("position", [30, -1])
def test_a_damaged_weights_file_is_refused(shared: Path, position: int) -> None:
    path = shared / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"model\.safetensors is a truncated or damaged"):
        cc.from_pretrained(shared)


def test_weights_without_a_hash_are_refused(weights: Path, shared: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = shared / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        header = {key: value for key, value in file.metadata().items() if "sha256" not in key}
    save_file(load_file(path), path, metadata=header)
    with pytest.raises(ValueError, match="no SHA-256 in its header"):
        cc.from_pretrained(shared)


def test_metadata_of_another_encoder_are_refused(shared: Path) -> None:
    path = shared / "config.json"
    path.write_text(path.read_text().replace('"stride":1', '"stride":2').replace('"stride": 1', '"stride": 2'))
    with pytest.raises(ValueError, match=r"config\.json does not describe model\.safetensors"):
        cc.from_pretrained(shared)


def test_a_folder_without_weights_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no model\.safetensors"):
        cc.from_pretrained(tmp_path)


def test_files_are_replaced_only_when_asked_for(weights: Path, shared: Path) -> None:
    with pytest.raises(FileExistsError, match="already exists"):
        cc.save_pretrained(weights, shared)
    assert "apache-2.0" not in (cc.save_pretrained(weights, shared, replace=True) / "README.md").read_text()


# The hub


def test_a_pushed_encoder_comes_back_to_the_last_bit(weights: Path, shared: Path, api: type[StandInApi]) -> None:
    (shared / "notes.txt").write_text("not to be sent")
    assert cc.push_to_hub(shared, "owner/name").startswith("hub:owner/name")
    sent = api.root / "owner" / "name"
    assert sorted(path.name for path in sent.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert api.private == {"owner/name": True}
    assert torch.equal(features(cc.from_pretrained(sent)), features(cc.load_encoder(weights)))


def test_nothing_goes_to_a_public_repository_unless_asked_for(shared: Path, api: type[StandInApi]) -> None:
    api.private["owner/name"] = False
    with pytest.raises(ValueError, match="owner/name is public"):
        cc.push_to_hub(shared, "owner/name")
    assert not api.root.exists()
    cc.push_to_hub(shared, "owner/name", public=True)
    cc.push_to_hub(shared, "owner/other", public=True)
    assert api.private == {"owner/name": False, "owner/other": False}


def test_a_damaged_folder_is_not_sent(shared: Path, api: type[StandInApi]) -> None:
    data = bytearray((shared / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (shared / "model.safetensors").write_bytes(data)
    with pytest.raises(DamagedFileError):
        cc.push_to_hub(shared, "owner/name")
    assert not api.private and not api.root.exists()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    folder = tmp_path / "cache"
    for module in ("constants", "_snapshot_download"):
        name = f"huggingface_hub.{module}"
        if hasattr(importlib.import_module(name), "HF_HUB_CACHE"):
            monkeypatch.setattr(f"{name}.HF_HUB_CACHE", str(folder))
    return folder


@pytest.mark.usefixtures("no_network")
def test_a_repository_is_read_from_the_cache_and_never_downloaded_silently(shared: Path, cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder owner/name, and no such repository in the hub's cache"):
        cc.from_pretrained("owner/name")
    commit = "0123456789" * 4
    repository = cache / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(shared, repository / "snapshots" / commit)
    assert torch.equal(features(cc.from_pretrained("owner/name")), features(cc.from_pretrained(shared)))


@pytest.mark.usefixtures("cache")
def test_a_download_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **options: object) -> str:
        raise OSError("no route to the hub\nsecond line")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(ConnectionError) as caught:
        cc.from_pretrained("owner/name", download=True)
    assert str(caught.value) == "owner/name: no route to the hub"


@pytest.mark.parametrize("source", ["gone", "a/b/c", "./gone", "../owner/name"])
def test_a_path_that_is_no_repository_is_a_missing_folder(source: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"no folder {source}; a repository of the hub has the form OWNER/NAME"):
        cc.from_pretrained(source)


def test_options_of_a_repository_are_refused_for_a_folder(shared: Path) -> None:
    with pytest.raises(ValueError, match="revision and download are for a repository"):
        cc.from_pretrained(shared, download=True)


def test_a_missing_extra_is_one_line_and_folders_need_none(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    line = r"^the hub needs huggingface_hub: pip install 'covid-cmsf\[huggingface_hub\]'$"
    with pytest.raises(ValueError, match=line):
        cc.from_pretrained("owner/name")
    with pytest.raises(ValueError, match=line):
        cc.push_to_hub(shared, "owner/name")
    assert cc.from_pretrained(shared).name == "s3d_tiny"


# Commands, and torch.hub


def test_pack_and_push_as_typed(weights: Path, tmp_path: Path, api: type[StandInApi]) -> None:
    folder = tmp_path / "packed"
    packed = run("weights", "pack", weights, "-o", folder, "--license", "mit", "--name", "My encoder")
    assert packed.exit_code == 0 and "nothing was sent" in packed.stdout and not api.private
    assert "license: mit" in (folder / "README.md").read_text() and "# My encoder" in (folder / "README.md").read_text()
    pushed = run("weights", "push", folder, "owner/name", "-m", "first")
    assert pushed.exit_code == 0 and "sent to hub:owner/name: first" in pushed.stdout
    assert "already exists" in str(run("weights", "pack", weights, "-o", folder).exception)
    assert run("weights", "pack", weights, "-o", folder, "--force").exit_code == 0


def test_torch_hub_loads_a_folder_from_a_clone(weights: Path, shared: Path) -> None:
    encoder = torch.hub.load(str(ROOT), "from_pretrained", source="local", folder=str(shared))
    assert torch.equal(features(encoder), features(cc.load_encoder(weights)))
