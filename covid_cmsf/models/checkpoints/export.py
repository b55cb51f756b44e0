"""Weights out for other programs: ONNX, torch.export, CoCLR's keys. Each file is read again and compared.

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

TOLERANCE = 1e-4  # of the largest feature value: another engine sums in another order
ONNX_MODULES = ("onnx", "onnxscript", "onnxruntime")


def export_onnx(path: Path, encoder: Encoder, metadata: EncoderMetadata) -> float:
    """Writes clip (B, C, T, H, W) -> feature (B, num_features) as ONNX, any batch size; returns the difference."""
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
    """Writes the same with `torch.export`; `torch.export.load(path).module()` runs it without our code."""
    clip, contiguous = example_clip(metadata), _contiguous_copy(encoder)
    program = torch.export.export(contiguous, (clip,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with atomic_path(path) as temporary:
        with temporary.open("wb") as file:
            torch.export.save(program, file, extra_files={"covid_cmsf": metadata.model_dump_json()})
        with temporary.open("rb") as file, torch.inference_mode():
            feature = torch.export.load(file).module()(clip[:1])
        return _check_output(encoder, clip[:1], feature, path)


def export_coclr(path: Path, loaded: LoadedWeights) -> float:
    """Writes CoCLR's own keys, both sets, which their code loads strictly; reads them back and compares bits."""
    head = None if loaded.projector is None else loaded.projector.state_dict()
    state = {key: value.contiguous() for key, value in to_coclr(loaded.encoder.state_dict(), head).items()}
    with atomic_path(path) as temporary:
        torch.save({"epoch": 0, "state_dict": state}, temporary)
        again = load_weights(temporary, encoder=loaded.encoder.name).encoder.state_dict()
    for key, value in loaded.encoder.state_dict().items():
        if not torch.equal(again[key], value):
            raise RuntimeError(f"{path}: {key} came back changed")
    return 0.0


def example_clip(metadata: EncoderMetadata) -> Tensor:
    """Two clips of noise in the encoder's own input size, the same every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, metadata.in_channels, *metadata.input_size, generator=generator)


def _contiguous_copy(encoder: Encoder) -> Encoder:
    """A copy with contiguous weights, which is what exported files hold."""
    return copy.deepcopy(encoder).to(memory_format=torch.contiguous_format)


def _run_onnx(path: Path, clip: Tensor) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (feature,) = session.run(["feature"], {"clip": clip.numpy()})
    return torch.from_numpy(feature)


def _check_output(encoder: Encoder, clip: Tensor, feature: Tensor, path: Path) -> float:
    """The largest difference to our encoder, relative to its largest value; RuntimeError when it is too large."""
    with torch.inference_mode():
        ours = encoder(clip)
    if not torch.isfinite(ours).all():
        raise RuntimeError(f"the encoder itself gives values that are not finite; {path} was not written")
    difference: float = ((feature - ours).abs().max() / ours.abs().max()).item()
    if not difference <= TOLERANCE:
        raise RuntimeError(
            f"{path}: the exported encoder differs from ours by {difference:.2g} of the largest value "
            f"(at most {TOLERANCE:.0e} is accepted); the file was not written"
        )
    return difference
