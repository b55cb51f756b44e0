"""VideoMAE and V-JEPA 2 of transformers: features, preprocessing, older files, search, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from covid_cmsf.evaluation.features.model import load_eval_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.models.named_networks import load_named_network, named_library, network_name
from covid_cmsf.models.transformers_networks import NETWORKS, load_transformers_network
from covid_cmsf.search.encoders import encoder_from_json, open_encoder
from tests.models.test_image_networks import generated_frame, max_levels, no_network  # noqa: F401
from tests.models.transformers_factories import SIZE, processor_of, save_tiny

assert NETWORKS


def their_features(model: Any, clip: torch.Tensor) -> torch.Tensor:
    """What the classifier takes, or the mean over tokens: by the models' own words, slow and obvious."""
    videos = clip.transpose(1, 2)  # (B, T, C, H, W)
    name = type(model).__name__
    with torch.inference_mode():
        if "Classification" in name:
            seen: list[torch.Tensor] = []
            model.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
            model(videos)
            return seen[0]
        if name == "VideoMAEForPreTraining":
            return torch.Tensor(model.videomae(videos).last_hidden_state.mean(1))
        features: torch.Tensor = model(videos).last_hidden_state.mean(1)
        return features


@pytest.mark.parametrize("architecture", NETWORKS)
def test_features_are_those_of_transformers(architecture: str, tmp_path: Path, no_network: None) -> None:  # noqa: F811
    model = save_tiny(tmp_path / "tiny", architecture)
    loaded = load_named_network(f"transformers:{tmp_path / 'tiny'}")
    clip = torch.randn(2, 3, 4, SIZE, SIZE)
    with torch.inference_mode():
        found = loaded.network(clip)
    assert torch.allclose(found, their_features(model, clip), atol=1e-5)
    assert found.shape == (2, loaded.network.num_features) and not torch.allclose(found[0], found[1], atol=1e-3)
    assert loaded.path == tmp_path / "tiny" / "model.safetensors" and loaded.network.name == "transformers:tiny"
    assert not any("predictor" in name or "decoder" in name for name, _ in loaded.network.named_parameters())
    assert not loaded.network.train().training  # frozen


@pytest.mark.parametrize("resample", [2, 3])  # bilinear, bicubic
@pytest.mark.parametrize("architecture", ["VideoMAEModel", "VJEPA2Model"])
def test_its_own_preprocessing_is_that_of_its_processor(architecture: str, resample: int, tmp_path: Path) -> None:
    save_tiny(tmp_path, architecture)
    processor_of(architecture, resample=resample).save_pretrained(tmp_path)
    model = load_eval_model(f"transformers:{tmp_path}")
    protocol = build_eval_protocol(model.metadata)
    assert (protocol.modality, protocol.length, protocol.size) == ("rgb", 4, SIZE)
    assert protocol.stride == (4 if architecture == "VideoMAEModel" else 2)
    frames = np.stack([generated_frame(60 + i, 85)[:60] for i in range(4)])  # (T, H, W, 3)
    processor = processor_of(architecture, resample=resample)
    theirs = processor(list(frames), return_tensors="pt")
    theirs = next(iter(theirs.values()))[0].transpose(0, 1)  # (C, T, H, W)
    strided = np.repeat(frames, protocol.stride, axis=0)  # so that these frames are sampled
    ours = model.network.preprocess(strided)  # type: ignore[operator]
    assert ours.shape == theirs.shape
    assert max_levels(ours.transpose(0, 1), theirs.transpose(0, 1), protocol.std) < 2.5


def test_length_and_stride_can_be_chosen_where_positions_allow_it(tmp_path: Path) -> None:
    save_tiny(tmp_path / "jepa", "VJEPA2Model")
    network = load_transformers_network(f"transformers:{tmp_path / 'jepa'}?frames=8&stride=3").network
    assert network.metadata.input_size == (8, SIZE, SIZE) and network.metadata.stride == 3
    assert network(torch.randn(1, 3, 8, SIZE, SIZE)).shape == (1, 24)
    with pytest.raises(ValueError, match=r"takes frames by 2 and pixels by 16: 7 frames of 32 pixels do not fit"):
        load_transformers_network(f"transformers:{tmp_path / 'jepa'}?frames=7")
    save_tiny(tmp_path / "mae", "VideoMAEModel")
    with pytest.raises(ValueError, match="transformers:mae takes 4 frames of 32 pixels only, not 8 of 32"):
        load_transformers_network(f"transformers:{tmp_path / 'mae'}?frames=8")
    with pytest.raises(ValueError, match="stride=0 is no number from 1 on"):
        load_transformers_network(f"transformers:{tmp_path / 'mae'}?stride=0")
    one = load_transformers_network(f"transformers:{tmp_path / 'mae'}").network
    with pytest.raises(ValueError, match=r"takes clips of \(4, 32, 32\) only, not \(6, 32, 32\)"):
        one(torch.randn(1, 3, 6, SIZE, SIZE))


def test_files_of_all_versions_are_read(tmp_path: Path) -> None:
    """Biases have other names inside transformers 5 than in the files of the Hub; the size may be a number."""
    save_tiny(tmp_path, "VideoMAEModel")
    expected = weights_sha256(load_transformers_network(f"transformers:{tmp_path}").network)
    tensors = load_file(tmp_path / "model.safetensors")
    names = {"q_bias": "query.bias", "v_bias": "value.bias"}
    swapped = names if any("q_bias" in name for name in tensors) else {new: old for old, new in names.items()}
    renamed = {}
    for name, tensor in tensors.items():
        for before, after in swapped.items():
            name = name.replace(before, after)
        renamed[name] = tensor
    assert renamed.keys() != tensors.keys()
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    path = tmp_path / "preprocessor_config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "size": 40, "feature_extractor_type": "VideoMAEFeatureExtractor"}))
    network = load_transformers_network(f"transformers:{tmp_path}").network
    assert weights_sha256(network) == expected and network.metadata.crop == 0.8


def test_an_index_keeps_all_that_makes_the_network(tmp_path: Path) -> None:
    folder, index = tmp_path / "tiny", tmp_path / "index"
    index.mkdir()
    save_tiny(folder, "VJEPA2ForVideoClassification")
    entry = open_encoder(f"transformers:{folder}?frames=8")
    values = json.loads(json.dumps(entry.to_json(index)))
    for path in folder.iterdir():
        path.unlink()
    again = encoder_from_json(index, "transformer", values)
    assert entry.name == again.name == "transformer" and again.eval_protocol == entry.eval_protocol
    assert weights_sha256(again.model.network) == weights_sha256(entry.model.network)
    clip = torch.randn(1, 3, 8, SIZE, SIZE)
    with torch.inference_mode():
        assert torch.allclose(again.model.network(clip), entry.model.network(clip), atol=1e-5)
    values["network"]["settings"]["architecture"] = "BertModel"
    with pytest.raises(ValueError, match="'BertModel' is none of VideoMAEModel"):
        encoder_from_json(index, "transformer", values)


def test_what_is_missing_or_does_not_fit_is_one_line(tmp_path: Path, no_network: None) -> None:  # noqa: F811
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nothing; .* download it: .*\?weights=hub"):
        load_transformers_network(f"transformers:{tmp_path / 'nothing'}")
    with pytest.raises(ValueError, match="weights=w.pth is not understood: leave it out"):
        load_transformers_network(f"transformers:{tmp_path}?weights=w.pth")
    with pytest.raises(ValueError, match=r"the weights of MCG-NJU/videomae-tiny could not be downloaded \("):
        load_transformers_network("transformers:MCG-NJU/videomae-tiny?weights=hub")
    save_tiny(tmp_path, "VideoMAEModel")
    address, files = f"transformers:{tmp_path}", {path: path.read_bytes() for path in tmp_path.iterdir()}

    def with_file(name: str, content: bytes | None) -> None:
        for path, before in files.items():
            path.write_bytes(before)
        if content is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_bytes(content)

    config = json.loads(files[tmp_path / "config.json"])
    processor = json.loads(files[tmp_path / "preprocessor_config.json"])
    tensors = load_file(tmp_path / "model.safetensors")
    cases: list[tuple[str, object, type[Exception], str]] = [
        ("config.json", None, FileNotFoundError, "config.json"),
        ("config.json", {**config, "architectures": ["BertModel"]}, ValueError, "'BertModel' is none of VideoMAEModel"),
        ("config.json", {**config, "hidden_size": 32}, ValueError, "does not fit .*config.json: .* another shape"),
        ("preprocessor_config.json", None, FileNotFoundError, "has no video_preprocessor_config.json or prep"),
        (
            "preprocessor_config.json",
            {**processor, "do_center_crop": False},
            ValueError,
            "only a short edge .*, a center",
        ),
        ("preprocessor_config.json", {**processor, "size": {"height": 9, "width": 9}}, ValueError, "only a short edge"),
        ("preprocessor_config.json", {**processor, "rescale_factor": 1.0}, ValueError, "only a short edge"),
        ("preprocessor_config.json", {**processor, "resample": 1}, ValueError, "only a short edge .* bicubic"),
        ("preprocessor_config.json", {**processor, "crop_size": 48}, ValueError, "only a short edge"),
        ("model.safetensors", None, FileNotFoundError, "only weights in one file of safetensors are read"),
    ]
    for name, content, kind, message in cases:
        with_file(name, None if content is None else json.dumps(content).encode())
        with pytest.raises(kind, match=message):
            load_transformers_network(address)
    with_file("model.safetensors", files[tmp_path / "model.safetensors"][:200])
    with pytest.raises(ValueError, match=r"cannot be read as VideoMAEModel \("):
        load_transformers_network(address)
    name = next(iter(tensors))
    save_file({key: one for key, one in tensors.items() if key != name}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name} is missing or of another shape"):
        load_transformers_network(address)


def test_code_of_a_repository_never_runs(tmp_path: Path) -> None:
    save_tiny(tmp_path, "VideoMAEModel")
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'it_ran')!r}, 'w')\n")
    load_transformers_network(f"transformers:{tmp_path}")
    assert not (tmp_path / "it_ran").exists()


def test_a_plan_notices_other_preprocessing_and_options(tmp_path: Path) -> None:
    save_tiny(tmp_path, "VideoMAEModel")
    address = f"transformers:{tmp_path}"
    library = named_library(address)
    assert library is not None and library.inputs(address) == library.inputs(address)
    first = library.inputs(address)
    assert library.inputs(f"{address}?stride=2") != first
    path = tmp_path / "preprocessor_config.json"
    path.write_text(path.read_text().replace("0.5", "0.25"))
    assert library.inputs(address) != first


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("transformers:models/videomae-base/", "videomae-base"),
        ("transformers:MCG-NJU/videomae-base?weights=hub", "videomae-base"),
        ("timm:resnet50.a1_in1k?weights=hub", "resnet50.a1_in1k"),
        ("timm:resnet50?weights=a/b.pth", "resnet50"),
    ],
)
def test_the_name_of_a_stage_is_the_last_part(address: str, name: str) -> None:
    assert network_name(address) == name
