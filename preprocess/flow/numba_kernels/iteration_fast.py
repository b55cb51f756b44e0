"""`iterate_` of `iteration.py` without OpenCV's rounding, for the backend `numba-fast`.

Products and sums are fused, roots and quotients are computed in float32. OpenCV's scheme amplifies such differences to
hundredths of a pixel where things move, and to tenths where its iterations do not converge (fast, blurred motion).
Planes as in `iteration.py`; docs/concepts/flow-kernels.md explains the code.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from preprocess.flow.numba_kernels import JIT_OPTIONS
from preprocess.flow.numba_kernels.iteration import FLT_EPSILON
from preprocess.flow.numba_kernels.simd import (
    WIDTH,
    Lanes,
    load,
    select_lanes,
    splat,
    store,
    sum_lanes,
    unpack_arguments,
)


def _row_kernel(primal: bool, dual: bool) -> Callable[..., Any]:
    """Return an intrinsic for one row, as `iteration._row_kernel`, with flow and duals in one loop."""

    def kernel(
        typing_context: Any,
        u: Any,
        p: Any,
        data: Any,
        inside: Any,
        row_start: Any,
        stride: Any,
        bound: Any,
        theta: Any,
        step: Any,
    ) -> Any:
        signature = types.float32(u, p, data, inside, row_start, stride, bound, theta, step)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            u, p, data, inside, row_start, stride, *scalars = unpack_arguments(context, builder, signature, arguments)
            bound, theta, step = (splat(builder, number) for number in scalars)
            zero, one, epsilon = (splat(builder, number) for number in (0.0, 1.0, FLT_EPSILON))
            error = cgutils.alloca_once_value(builder, zero.value)

            def shifted(index: Any, offset: int) -> Any:
                return builder.add(index, index.type(offset))

            def new_flow(here: Any, up: list[Lanes]) -> list[Lanes]:
                """Update the flow at `here` and return it; add its squared change to the error."""
                below = builder.add(here, stride)  # this row's index in p
                old, g = ([load(builder, planes[k], here) for k in range(2)] for planes in (u, data))
                square, rho = load(builder, data[2], here), load(builder, data[3], here)
                residual = g[1].multiply_add(old[1], g[0].multiply_add(old[0], rho))
                shift = select_lanes(epsilon.less(square), residual / square, zero)
                shift = shift.maximum(zero - bound).minimum(bound)
                total, new = Lanes(builder, builder.load(error)), []
                for k in range(2):
                    px, py = load(builder, p[2 * k], below), load(builder, p[2 * k + 1], below)
                    divergence = (px - load(builder, p[2 * k], shifted(below, -1))) + (py - up[k])
                    change = theta.multiply_add(divergence, zero - shift * g[k])
                    new.append(old[k] + change)
                    store(builder, u[k], here, new[k])
                    total = change.multiply_add(change, total)
                builder.store(total.value, error)
                return new

            def new_dual(here: Any, x: Any, up: list[Lanes], below: list[Lanes]) -> None:
                """Update the duals of the row above `here`, which have the index `here` in p."""
                above = builder.sub(here, stride)
                mask = load(builder, inside, x)
                for k in range(2):
                    middle = load(builder, u[k], above)
                    dx = (load(builder, u[k], shifted(above, 1)) - middle) * mask
                    dy = below[k] - middle if primal else zero
                    length = dx.multiply_add(dx, dy * dy).sqrt()
                    shrink = one / step.multiply_add(length, one)
                    store(builder, p[2 * k], here, step.multiply_add(dx, load(builder, p[2 * k], here)) * shrink)
                    store(builder, p[2 * k + 1], here, step.multiply_add(dy, up[k]) * shrink)

            with cgutils.for_range_slice(builder, stride.type(0), stride, stride.type(WIDTH), stride.type) as (x, _):
                here = builder.add(row_start, x)
                up = [load(builder, p[2 * k + 1], here) for k in range(2)]
                below = new_flow(here, up) if primal else []
                if dual:
                    new_dual(here, x, up, below)
            return sum_lanes(Lanes(builder, builder.load(error)))

        return signature, generate

    return intrinsic(kernel)


_first_row_ = _row_kernel(primal=True, dual=False)
_next_row_ = _row_kernel(primal=True, dual=True)
_last_row_ = _row_kernel(primal=False, dual=True)


@njit(**JIT_OPTIONS)
def iterate_fast_(
    u: tuple[np.ndarray, ...],
    p: tuple[np.ndarray, ...],
    data: tuple[np.ndarray, ...],
    inside: np.ndarray,
    height: int,
    stride: int,
    bound: float,
    theta: float,
    step: float,
) -> float:
    """Update `u` and `p` by one iteration, in place; return the sum of squared changes of `u`. See `iterate_`."""
    error = _first_row_(u, p, data, inside, 0, stride, bound, theta, step)
    for y in range(1, height):
        error += _next_row_(u, p, data, inside, y * stride, stride, bound, theta, step)
    _last_row_(u, p, data, inside, height * stride, stride, bound, theta, step)
    return error
