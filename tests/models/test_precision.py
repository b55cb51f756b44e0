import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from covid_cmsf.models import create_model
from covid_cmsf.models.precision import autocast, compile_, resolve_precision


def test_fp32_changes_nothing_and_bf16_runs_the_convolutions_in_bf16() -> None:
    encoder = create_model("s3d_tiny").eval()
    clip = torch.randn(1, 3, 8, 32, 32)
    with torch.inference_mode():
        exact = encoder(clip)
        with autocast("fp32", "cpu"):
            assert torch.equal(encoder(clip), exact)
        with autocast("bf16", "cpu"):
            half = encoder.forward_features(clip)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float().mean(dim=(2, 3, 4)), exact, atol=0.05, rtol=0.1)


@pytest.mark.parametrize(
    ("device", "capability", "found"), [("cpu", 9, "fp32"), ("cuda", 7, "fp32"), ("cuda", 8, "bf16")]
)
def test_auto_is_bf16_on_gpus_that_have_it(
    device: str, capability: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: mock.Mock(major=capability))
    assert resolve_precision("auto", torch.device(device)) == found
    assert resolve_precision("fp16", torch.device(device)) == "fp16"


def test_unknown_precision_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="unknown precision 'fp8'; choose from fp32, bf16, fp16"):
        autocast("fp8", "cpu")


@pytest.mark.slow
def test_compiled_encoder_keeps_its_keys_and_its_numbers() -> None:
    encoder = create_model("c21d_tiny").eval()  # S3D takes minutes to compile
    clip = torch.randn(1, 3, 4, 32, 32)
    keys = list(encoder.state_dict())
    with torch.no_grad():
        before = encoder(clip)
        after = compile_(encoder)(clip)
    assert list(encoder.state_dict()) == keys
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_step_benchmark_keeps_its_ratios_with_date_and_cpu(tmp_path: Path) -> None:
    tool = Path(__file__).parents[2] / "tools" / "benchmark.py"
    args = ("step", "--size", "8x32x32", "--repeats", "1", "--threads", "1", "--json", str(tmp_path / "step.json"))
    subprocess.run([sys.executable, str(tool), *args], capture_output=True, text=True, check=True)
    kept = json.loads((tmp_path / "step.json").read_text())
    assert kept["results"]["channels_last_fused_adam_ratio"] > 0
    assert kept["benchmark"] == "step" and kept["date"] and kept["cpu"]
