"""`encoder.preprocess`: the clip that evaluation gives the encoder, from the frames of a video."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.flow_codec import COCLR_LEVELS, FlowLevels
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.features.video_dataset import VideoDataset
from covid_cmsf.models import Encoder, EncoderMetadata, InputTransform, create_model
from covid_cmsf.views.modalities import get_modality

STORE = Path(__file__).parents[1] / "data" / "v0" / "clips"


def encoder_for(modality: str, **changes: object) -> Encoder:
    flow_style = changes.pop("flow_style", "motion")
    known = get_modality(modality, flow_style=flow_style)  # type: ignore[arg-type]
    name = "r10_small" if modality == "frame" else "c21d_tiny"
    encoder = create_model(name, in_channels=known.num_channels).eval()
    values = {
        "encoder": name, "in_channels": known.num_channels, "input_size": (4, 32, 32), "stride": 2,
        "mean": known.mean, "std": known.std, "modality": modality, "bn_eps": 1e-5,
    }  # fmt: skip
    encoder.metadata = EncoderMetadata.model_validate({**values, **changes})
    return encoder


@pytest.mark.parametrize(
    ("modality", "changes"),
    [
        ("rgb", {}),
        ("rgb", {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "stride": 1}),
        ("rgb", {"input_size": (64, 24, 24)}),  # longer than the video: padded
        ("flow", {}),
        ("flow", {"mean": (0.5, 0.4), "std": (0.2, 0.3)}),  # CoCLR's network, reduced to (x, y)
        ("flow", {"flow_style": "coclr"}),
        ("rgbdiff", {}),
        ("residual_flow", {}),
        ("frame", {}),
        ("rgb", {"crop": 0.8, "resize": {"interpolation": "bicubic"}}),
        ("frame", {"crop": 32 / 41, "resize": {"antialias": False, "aspect": 1.25, "floor": True}}),
    ],
)
def test_the_clip_is_that_of_the_evaluations_center_window(modality: str, changes: dict[str, object]) -> None:
    encoder = encoder_for(modality, **changes)
    assert encoder.metadata is not None
    clips = open_clips(str(STORE))
    protocol = build_eval_protocol(encoder.metadata, num_windows=1)
    data = VideoDataset(clips, clips.records[:1], ["test"], protocol)
    (expected,) = data[0].views(protocol, torch.device("cpu"))
    record = clips.records[0]
    stored, count = ("flow", record.num_flow) if modality in ("flow", "residual_flow") else ("rgb", record.num_frames)
    raw = clips.read_raw(record, stored, list(range(count)))
    for frames in (raw, raw.permute(0, 2, 3, 1), raw.permute(0, 2, 3, 1).numpy()):
        clip = encoder.preprocess(frames, levels=clips.flow_levels(record))
        assert clip.shape == expected.shape and clip.dtype == torch.float32
        torch.testing.assert_close(clip, expected, rtol=0, atol=1e-5)  # another memory layout may round differently
    assert encoder(clip[None]).shape == (1, encoder.num_features)


def test_flow_in_pixels_is_quantized_as_in_a_clip_store() -> None:
    codes = np.random.default_rng(0).integers(1, 256, (8, 40, 48, 2), dtype=np.uint8)
    made = {"backend": "numba", "version": "", "parameters": {}, "levels": 255}
    for flow_info, levels in (
        (None, COCLR_LEVELS),
        ({**made, "bound": 3.0}, FlowLevels(3.0)),
        ({**made, "bound": "size"}, FlowLevels(20 * 40 / 240)),
    ):
        encoder = encoder_for("flow", flow=flow_info)
        flow = levels.decode(codes)
        torch.testing.assert_close(encoder.preprocess(flow), encoder.preprocess(codes), rtol=0, atol=1e-5)


def test_the_bound_by_motion_is_that_of_the_given_flow() -> None:
    made = {"backend": "numba", "version": "", "parameters": {}, "levels": 255, "bound": "auto"}
    encoder = encoder_for("flow", flow=made)
    flow = np.random.default_rng(0).normal(0, 0.1, (8, 40, 48, 2)).astype(np.float32)
    levels = FlowLevels(round(float(np.percentile(np.abs(flow), 99.9)), 4))
    torch.testing.assert_close(encoder.preprocess(flow), encoder.preprocess(levels.encode(flow), levels=levels))
    with pytest.raises(ValueError, match="bound follows the motion"):
        encoder.preprocess(levels.encode(flow))


@pytest.mark.parametrize(
    ("modality", "frames", "message"),
    [
        ("rgb", torch.zeros(8, 40, 48, 3), "takes uint8, 0 to 255"),
        ("rgb", torch.zeros(40, 48, 3, dtype=torch.uint8), r"takes \(T, H, W, 3\)"),
        ("flow", torch.zeros(8, 40, 48, 3, dtype=torch.uint8), "compute the optical flow first"),
        ("flow", torch.zeros(8, 40, 48, 2, dtype=torch.int64), "floats in pixels"),
        ("rgbdiff", torch.zeros(1, 40, 48, 3, dtype=torch.uint8), "1 frames are too few for rgbdiff"),
    ],
)
def test_frames_that_do_not_fit_are_refused(modality: str, frames: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder_for(modality).preprocess(frames)


def test_an_encoder_that_was_not_loaded_cannot_preprocess() -> None:
    with pytest.raises(ValueError, match="load_encoder"):
        create_model("c21d_tiny").preprocess(torch.zeros(8, 40, 48, 3, dtype=torch.uint8))


def test_an_oblong_input_size_needs_a_square_one() -> None:
    encoder = encoder_for("rgb", input_size=(4, 32, 40))
    assert encoder.metadata is not None
    with pytest.raises(ValueError, match="32x40 pixels; give a square size"):
        encoder.preprocess(torch.zeros(8, 40, 48, 3, dtype=torch.uint8))
    assert replace(InputTransform.from_metadata(encoder.metadata, size=16), length=2)(
        torch.zeros(8, 40, 48, 3, dtype=torch.uint8)
    ).shape == (3, 2, 16, 16)
