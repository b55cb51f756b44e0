"""Memory of a training step per clip: what autograd keeps, with gradient checkpointing and without.

    python tools/benchmark.py activations                        S3D at the paper's size
    python tools/benchmark.py activations --encoder r50 --size 1x224x224

Counted from shapes, without data: any size takes seconds. With gradient checkpointing the inputs of the blocks are
kept, and the largest block is computed again while they are.
"""

from typing import Any

import typer

from covid_cmsf.models.encoder import parse_size
from covid_cmsf.models.profile import activation_bytes
from tools.benchmarks.measure import JsonFile, print_results


def command(
    encoder: str = typer.Option("s3d", help="Encoder of the zoo."),
    size: str = typer.Option("32x128x128", help="Clip as TxHxW."),
    json_file: JsonFile = None,
) -> None:
    """Bytes per clip that a backward pass needs: plain against gradient checkpointing."""
    results: dict[str, Any] = {"encoder": encoder, "size": size}
    for precision in ("fp32", "bf16"):
        plain, less = (
            activation_bytes(encoder, parse_size(size), precision=precision, gradient_checkpointing=checkpointed)
            for checkpointed in (False, True)
        )
        results |= {
            f"{precision}_plain_mb": plain.peak / 1e6,
            f"{precision}_checkpointed_mb": less.peak / 1e6,
            f"{precision}_checkpointed_inputs_of_blocks_mb": less.kept / 1e6,
            f"{precision}_checkpointed_largest_block_mb": less.recomputed / 1e6,
            f"{precision}_times_less": plain.peak / less.peak,
        }
    print_results(results, json_file=json_file)
