"""Export encoders to ONNX, torch.export and CoCLR's format. Each file is read back and compared.

ONNX needs the extra `export` (onnx, onnxscript, onnxruntime).
"""

import copy
import importlib.util
import logging
from pathlib import Path

import torch
from torch import Tensor

from covid_cmsf.files import atomic_path
from covid_cmsf.models.checkpoints.formats.coclr import to_coclr
from covid_cmsf.models.checkpoints.load import LoadedWeights, load_weights
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.encoder import Encoder
from covid_cmsf.views.modalities import MODALITIES

TOLERANCE = 1e-4  # relative to the largest feature value: other runtimes sum in another order
ONNX_MODULES = ("onnx", "onnxscript", "onnxruntime")


def export_onnx(path: Path, encoder: Encoder, metadata: EncoderMetadata) -> float:
    """Write the encoder, (B, C, T, H, W) -> (B, num_features) for any B, as ONNX; return the relative difference."""
    missing = [name for name in ONNX_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"ONNX export needs {', '.join(missing)}: pip install 'covid-cmsf[export]'")
    clip, contiguous = example_clip(metadata), _contiguous_copy(encoder)
    dynamic = ({0: torch.export.Dim("batch")},)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    logging.getLogger("onnxscript").setLevel(logging.WARNING)
    with atomic_path(path) as temporary:
        program = torch.onnx.export(
            contiguous, (clip,), dynamo=True, verbose=False, dynamic_shapes=dynamic,
            input_names=["clip"], output_names=["feature"],
        )  # fmt: skip
        assert program is not None
        program.model.metadata_props["covid_cmsf"] = metadata.model_dump_json()
        program.save(temporary, external_data=False)
        return _check_output(encoder, clip[:1], _run_onnx(temporary, clip[:1]), path)


def export_program(path: Path, encoder: Encoder, metadata: EncoderMetadata) -> float:
    """Write the same with `torch.export`; `torch.export.load(path).module()` runs it without this package."""
    clip, contiguous = example_clip(metadata), _contiguous_copy(encoder)
    program = torch.export.export(contiguous, (clip,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with atomic_path(path) as temporary:
        with temporary.open("wb") as file:
            torch.export.save(program, file, extra_files={"covid_cmsf": metadata.model_dump_json()})
        with temporary.open("rb") as file, torch.inference_mode():
            feature = torch.export.load(file).module()(clip[:1])
        return _check_output(encoder, clip[:1], feature, path)


def export_coclr(path: Path, loaded: LoadedWeights) -> float:
    """Write CoCLR's keys, both sets, which CoCLR's code loads strictly; read them back and compare exactly."""
    head = None if loaded.projector is None else loaded.projector.state_dict()
    state = {key: value.contiguous() for key, value in to_coclr(loaded.encoder.state_dict(), head).items()}
    with atomic_path(path) as temporary:
        torch.save({"epoch": 0, "state_dict": state}, temporary)
        reloaded = load_weights(temporary, encoder=loaded.encoder.name).encoder.state_dict()
    for key, value in loaded.encoder.state_dict().items():
        if not torch.equal(reloaded[key], value):
            raise RuntimeError(f"{path}: {key} differs after reading the file back")
    return 0.0


def example_clip(metadata: EncoderMetadata) -> Tensor:
    """Return two clips of noise (2, C, T, H, W) in the encoder's input size, from a fixed seed; of sound, T is 1."""
    frames, height, width = metadata.input_size
    known = MODALITIES.get(metadata.modality)
    if known is not None and known.spectrogram:
        frames = 1  # one picture of all frames
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, metadata.in_channels, frames, height, width, generator=generator)


def _contiguous_copy(encoder: Encoder) -> Encoder:
    """Return a copy with contiguous instead of channels-last weights."""
    return copy.deepcopy(encoder).to(memory_format=torch.contiguous_format)


def _run_onnx(path: Path, clip: Tensor) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (feature,) = session.run(["feature"], {"clip": clip.numpy()})
    return torch.from_numpy(feature)


def _check_output(encoder: Encoder, clip: Tensor, feature: Tensor, path: Path) -> float:
    """Return the largest difference relative to the largest feature value; raise RuntimeError above `TOLERANCE`."""
    with torch.inference_mode():
        expected = encoder(clip)
    if not torch.isfinite(expected).all():
        raise RuntimeError(f"the encoder gives features that are not finite; {path} was not written")
    difference: float = ((feature - expected).abs().max() / expected.abs().max()).item()
    if not difference <= TOLERANCE:
        raise RuntimeError(
            f"{path}: the exported encoder differs from the original by {difference:.2g} of the largest value "
            f"(at most {TOLERANCE:.0e} is accepted); the file was not written"
        )
    return difference
