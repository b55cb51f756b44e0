"""One primal-dual iteration of TV-L1 in one pass over memory (Zach, Pock, Bischof 2007, equations 12-15).

The dual variables of row y - 1 are updated right after the flow of row y, which they need, while both are in the L1
cache. Every operation is rounded as in OpenCV. docs/concepts/flow-kernels.md explains the code and the memory layout.

Planes are flat float32 arrays of (1 + H) * n + 8 values: H rows with stride n, the width rounded up to a multiple of 8;
the values between width and n are 0.
  u = (flow x, flow y, illumination), the last row is unused;
  data = (gx, gy, |g|^2, rho) from `warping.py`, the last row is unused;
  p = (p11, p12, p21, p22, p31, p32), the duals of u in x and y; row 0 is 0, so pixel (x, y) is at (y + 1) * n + x.
No loop has a special case at a row's ends: p_x is 0 in the last column, and hence valid as the left neighbor of the
next row's first pixel; the difference between the last column and the next row is multiplied by 0 (`inside`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from preprocess.flow.numba_kernels import JIT_OPTIONS
from preprocess.flow.numba_kernels.simd import (
    WIDTH,
    Lanes,
    divide,
    hypot,
    load,
    select_lanes,
    shuffle,
    splat,
    store,
    sum_lanes,
    unpack_arguments,
)

FLT_EPSILON = 1.1920929e-07  # a smaller squared gradient counts as 0, as in OpenCV


def _row_kernel(primal: bool, dual: bool) -> Callable[..., Any]:
    """Return an intrinsic for one row: update its flow (`primal`), the duals of the row above it (`dual`), or both.

    The intrinsic returns the sum of squared changes of the flow. `row_start` is the index of the row's first pixel in
    u. Without `primal` there is no row at `row_start`: the row above is the last one. `lengths` (n) is scratch memory.
    """

    def kernel(
        typing_context: Any,
        u: Any,
        p: Any,
        data: Any,
        inside: Any,
        lengths: Any,
        row_start: Any,
        stride: Any,
        bound: Any,
        theta: Any,
        step: Any,
    ) -> Any:
        signature = types.float32(u, p, data, inside, lengths, row_start, stride, bound, theta, step)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            u, p, data, inside, lengths, row_start, stride, *scalars = unpack_arguments(
                context, builder, signature, arguments
            )
            bound, theta, step = (splat(builder, number) for number in scalars)
            zero, one, epsilon = (splat(builder, number) for number in (0.0, 1.0, FLT_EPSILON))
            error = cgutils.alloca_once_value(builder, zero.value)

            def shifted(index: Any, offset: int) -> Any:
                return builder.add(index, index.type(offset))

            def each_vector(work: Callable[[Any, bool], None]) -> None:
                """Emit `work(x, first)` for the columns x = 0, 8, ... of the row."""
                work(stride.type(0), True)
                eight = stride.type(WIDTH)
                with cgutils.for_range_slice(builder, eight, stride, eight, stride.type) as (x, _):
                    work(x, False)

            def primal_step(x: Any, first: bool) -> None:
                here = builder.add(row_start, x)
                row_of_p = builder.add(here, stride)
                old = [load(builder, u[k], here) for k in range(2)]
                g = [load(builder, data[k], here) for k in range(2)]
                square, rho = load(builder, data[2], here), load(builder, data[3], here)
                residual = rho + (g[0] * old[0] + g[1] * old[1])
                limit = bound * square
                shift = select_lanes(epsilon.less(square), zero - residual / square, zero)
                shift = select_lanes(limit.less(residual), zero - bound, shift)
                shift = select_lanes(residual.less(zero - limit), bound, shift)
                total = Lanes(builder, builder.load(error))
                for k in range(2):
                    px, py = load(builder, p[2 * k], row_of_p), load(builder, p[2 * k + 1], row_of_p)
                    left, up = load(builder, p[2 * k], shifted(row_of_p, -1)), load(builder, p[2 * k + 1], here)
                    divergence = (px - left) + (py - up)
                    if first:  # OpenCV adds in another order in the first column
                        divergence = shuffle((px + py) - up, divergence, [0, *range(9, 16)])
                    new = (old[k] + shift * g[k]) + theta * divergence
                    store(builder, u[k], here, new)
                    total = total + (new - old[k]) * (new - old[k])
                builder.store(total.value, error)

            def slope(k: int, x: Any) -> tuple[Lanes, Lanes]:
                """Return the forward differences of u_k in x and y, in the row above."""
                here = builder.add(row_start, x)
                above = builder.sub(here, stride)
                middle = load(builder, u[k], above)
                dx = (load(builder, u[k], shifted(above, 1)) - middle) * load(builder, inside, x)
                return dx, load(builder, u[k], here) - middle if primal else zero

            def length_step(k: int) -> Callable[[Any, bool], None]:
                return lambda x, first: store(builder, lengths, x, hypot(*slope(k, x)))

            def dual_step(k: int) -> Callable[[Any, bool], None]:
                def work(x: Any, first: bool) -> None:
                    here = builder.add(row_start, x)  # in p, which has one row more in front, this is the row above
                    dx, dy = slope(k, x)
                    px, py = load(builder, p[2 * k], here), load(builder, p[2 * k + 1], here)
                    shrink = one + step * load(builder, lengths, x)
                    px, py = divide([px + step * dx, py + step * dy], shrink)
                    store(builder, p[2 * k], here, px)
                    store(builder, p[2 * k + 1], here, py)

                return work

            if primal:
                each_vector(primal_step)
            if dual:  # two loops: in one, the dependency chain is too long for the CPU to overlap vectors
                for k in range(2):
                    each_vector(length_step(k))
                    each_vector(dual_step(k))
            return sum_lanes(Lanes(builder, builder.load(error)))

        return signature, generate

    return intrinsic(kernel)


_first_row_ = _row_kernel(primal=True, dual=False)
_next_row_ = _row_kernel(primal=True, dual=True)
_last_row_ = _row_kernel(primal=False, dual=True)


@njit(**JIT_OPTIONS)
def iterate_(
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
    """Update `u` and `p` by one iteration, in place; return the sum of squared changes of `u`.

    u <- u - clip(rho(u) / |g|^2, +-bound) g + theta div p, then p <- (p + step grad u) / (1 + step |grad u|);
    `bound` is lambda * theta, `step` is tau / theta. `inside` (n) is 1, and 0 from the last column on.
    """
    lengths = np.empty(stride, np.float32)
    error = _first_row_(u, p, data, inside, lengths, 0, stride, bound, theta, step)
    for y in range(1, height):
        error += _next_row_(u, p, data, inside, lengths, y * stride, stride, bound, theta, step)
    _last_row_(u, p, data, inside, lengths, height * stride, stride, bound, theta, step)
    return error


# With a third plane for changes of illumination (OpenCV's gamma > 0): plain numba, not optimized.

EPSILON = np.float32(FLT_EPSILON)


@njit(**JIT_OPTIONS)
def iterate_illumination_(
    u: tuple[np.ndarray, ...],
    p: tuple[np.ndarray, ...],
    data: tuple[np.ndarray, ...],
    height: int,
    width: int,
    stride: int,
    bound: float,
    theta: float,
    step: float,
    gamma: float,
) -> np.float32:
    """Do what `iterate_` does for three planes; the data term's derivative with respect to the third is `gamma`."""
    error = np.float32(0)
    for y in range(height):
        for x in range(width):
            i = y * stride + x
            gx, gy, square, rho = data[0][i], data[1][i], data[2][i], data[3][i]
            residual = rho + (gx * u[0][i] + gy * u[1][i]) + gamma * u[2][i]
            shift = np.float32(0)
            if residual < -bound * square:
                shift = np.float32(bound)
            elif residual > bound * square:
                shift = np.float32(-bound)
            elif square > EPSILON:
                shift = np.float32(-residual / square)
            slope = (gx, gy, gamma)
            for k in range(3):
                px, py = p[2 * k], p[2 * k + 1]
                here = i + stride
                if x == 0:
                    divergence = (px[here] + py[here]) - py[i]
                else:
                    divergence = (px[here] - px[here - 1]) + (py[here] - py[i])
                old = u[k][i]
                u[k][i] = (old + shift * slope[k]) + theta * divergence
                error += (u[k][i] - old) * (u[k][i] - old)
    for y in range(height):
        for x in range(width):
            i = y * stride + x
            for k in range(3):
                dx = u[k][i + 1] - u[k][i] if x < width - 1 else np.float32(0)
                dy = u[k][i + stride] - u[k][i] if y < height - 1 else np.float32(0)
                length = np.float32(np.sqrt(np.float64(dx) * np.float64(dx) + np.float64(dy) * np.float64(dy)))
                shrink = np.float32(1) + step * length
                px, py = p[2 * k], p[2 * k + 1]
                px[i + stride] = (px[i + stride] + step * dx) / shrink
                py[i + stride] = (py[i + stride] + step * dy) / shrink
    return error
