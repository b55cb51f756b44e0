"""The cost of verifying files when they are read: SHA-256 of safetensors files, CRC-32 of checkpoints.

python tools/benchmark.py verify [--megabytes 500]
"""

import tempfile
from pathlib import Path

import torch
import typer
from safetensors.torch import load_file, save_file

from covid_cmsf.models.checkpoints.torch_file import damaged_record, write_torch_file
from covid_cmsf.verified_files import read_tensors, verify_tensors, write_tensors
from tools.benchmarks.measure import JsonFile, print_results, summarize_times, time_calls


def command(
    megabytes: int = typer.Option(500, min=1, help="Size of the file; it should fit into the page cache."),
    repeats: int = typer.Option(5, min=1),
    json_file: JsonFile = None,
) -> None:
    """Read and write a file with and without verification, in turns."""
    tensors = {"values": torch.randn(megabytes, 250_000)}
    with tempfile.TemporaryDirectory() as folder:
        path, plain, checkpoint = (Path(folder) / name for name in ("verified", "plain", "checkpoint"))
        write_torch_file(checkpoint, tensors)
        variants = {
            "write": lambda: write_tensors(path, tensors, metadata={}),
            "write_plain": lambda: save_file(tensors, plain),
            "read": lambda: read_tensors(path),
            "read_plain": lambda: {name: tensor.clone() for name, tensor in load_file(plain).items()},
            "sha256": lambda: verify_tensors(path),
            "crc32": lambda: damaged_record(checkpoint),
            "torch_load": lambda: torch.load(checkpoint, weights_only=True),
        }
        times: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(repeats):
            for name, work in variants.items():
                times[name] += time_calls(work, repeats=1)
    results: dict[str, float] = {"gigabytes": megabytes / 1000}
    for name, measured in times.items():
        results[f"{name}_gb_per_s"] = megabytes / 1000 / summarize_times(measured)["median_s"]
    print_results(results, json_file=json_file)
