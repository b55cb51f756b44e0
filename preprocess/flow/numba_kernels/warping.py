"""Bicubic warping of the second image and its derivatives in one pass, as OpenCV's `remap(INTER_CUBIC)`.

The image and its two derivatives are interleaved, four floats per pixel, so that the weights are computed once and a
vector instruction handles all three. Pixels outside the image are 0. docs/concepts/flow-kernels.md explains the code.
Shapes: H x W pixels of a level, n its row stride (see `iteration.py`), PAD zero pixels on every side.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from preprocess.flow.numba_kernels import JIT_OPTIONS
from preprocess.flow.numba_kernels.simd import VECTOR, WIDTH, Lanes, load, load_scalar, splat, store, unpack_arguments

PAD = 4  # pixels: enough for all 4 x 4 taps of a point clamped to 3 pixels outside the image
CHANNELS = 4  # image, d/dx, d/dy, 0


def _cubic_sum_code(
    typing_context: Any, image: Any, corner: Any, line: Any, wx: Any, wy: Any, x: Any, count: Any
) -> Any:
    """Emit the weighted sum over 4 x 4 pixels of the channels (image, d/dx, d/dy): three float32.

    `image[corner]` is the first channel of the upper left tap, `line` the row stride in floats; the weights are
    `wx[x + k * count]` and `wy[x + k * count]`, k = 0 ... 3. Indices are not checked.
    """
    signature = types.UniTuple(types.float32, 3)(image, corner, line, wx, wy, x, count)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        image, corner, line, wx, wy, x, count = unpack_arguments(context, builder, signature, arguments)

        def weight(weights: Any, tap: int) -> Lanes:
            index = builder.add(x, builder.mul(count, count.type(tap)))
            return splat(builder, load_scalar(builder, weights, index), CHANNELS)

        def weighted(values: list[Lanes], weights: list[Lanes]) -> Lanes:
            total = values[0] * weights[0]
            for value, factor in zip(values[1:], weights[1:], strict=True):
                total = value.multiply_add(factor, total)
            return total

        def row(tap: int) -> list[Lanes]:
            begin = builder.add(corner, builder.mul(line, line.type(tap)))
            addresses = [builder.add(begin, begin.type(k * CHANNELS)) for k in range(4)]
            return [load(builder, image, address, CHANNELS) for address in addresses]

        horizontal, vertical = ([weight(weights, tap) for tap in range(4)] for weights in (wx, wy))
        sums = weighted([weighted(row(tap), horizontal) for tap in range(4)], vertical)
        channels = [builder.extract_element(sums.value, ir.IntType(32)(k)) for k in range(3)]
        return context.make_tuple(builder, signature.return_type, channels)

    return signature, generate


def _sampling_positions_code(
    typing_context: Any,
    u: Any,
    row_start: Any,
    y: Any,
    stride: Any,
    right: Any,
    bottom: Any,
    line: Any,
    corner: Any,
    wx: Any,
    wy: Any,
) -> Any:
    """Emit the sampling positions x + u of the pixels of row `y`, which starts at index `row_start`.

    Writes the index of the upper left one of 4 x 4 taps into `corner` (n), their weights into `wx` and `wy` (4 * n).
    Points are clamped to -3 ... `right` and `bottom`: beyond, all taps are 0 in any case.
    """
    signature = types.void(u, row_start, y, stride, right, bottom, line, corner, wx, wy)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        u, row_start, y, stride, right, bottom, line, corner, wx, wy = unpack_arguments(
            context, builder, signature, arguments
        )
        integers = ir.VectorType(ir.IntType(32), WIDTH)
        lanes = Lanes(builder, ir.Constant(VECTOR, [float(lane) for lane in range(WIDTH)]))

        def sampling_position(position: Lanes, highest: Any, weights: Any, x: Any) -> Any:
            position = position.maximum(splat(builder, -3.0)).minimum(splat(builder, highest))
            whole = position.floor()
            for tap, weight in enumerate(cubic_weights(builder, position - whole)):
                store(builder, weights, builder.add(x, builder.mul(stride, stride.type(tap))), weight)
            return builder.fptosi((whole + splat(builder, PAD - 1.0)).value, integers)

        with cgutils.for_range_slice(builder, stride.type(0), stride, stride.type(WIDTH), stride.type) as (x, _):
            here = builder.add(row_start, x)
            column = splat(builder, builder.sitofp(x, ir.FloatType())) + lanes
            left = sampling_position(column + load(builder, u[0], here), right, wx, x)
            top = sampling_position(splat(builder, y) + load(builder, u[1], here), bottom, wy, x)
            lines = builder.insert_element(ir.Constant(integers, ir.Undefined), line, ir.IntType(32)(0))
            lines = builder.shuffle_vector(lines, lines, ir.Constant(integers, [0] * WIDTH))
            left = builder.mul(left, ir.Constant(integers, [CHANNELS] * WIDTH))
            target = builder.gep(corner, [x], source_etype=ir.IntType(32))
            target = builder.bitcast(target, integers.as_pointer())
            builder.store(builder.add(builder.mul(top, lines), left), target, align=4)
        return context.get_dummy_value()

    return signature, generate


def cubic_weights(builder: Any, x: Lanes) -> list[Lanes]:
    """Return the weights of the pixels at -1, 0, 1, 2 for a point at 0 <= x < 1: Keys' kernel (1981) with a = -0.75.

    Equal to OpenCV 5's to the last bit: the operations have the same order.
    """
    one, a = splat(builder, 1.0), splat(builder, -0.75)
    y = one - x
    first, last = a * (x * (y * y)), a * (y * (x * x))
    middle = splat(builder, 1.25).multiply_add(x, splat(builder, -2.25)).multiply_add(x * x, one)
    return [first, middle, ((one - first) - middle) - last, last]


_cubic_sum: Callable[..., Any] = intrinsic(_cubic_sum_code)
_sampling_positions_: Callable[..., Any] = intrinsic(_sampling_positions_code)


@njit(**JIT_OPTIONS)
def pack_(image: np.ndarray, packed: np.ndarray) -> None:
    """Write `image` (H, W) and its central differences into `packed` (H + 2 PAD, W + 2 PAD, 4)."""
    height, width = image.shape
    half = np.float32(0.5)
    for y in range(height):
        above, below, here = image[max(y - 1, 0)], image[min(y + 1, height - 1)], image[y]
        out = packed[y + PAD]
        for x in range(width):
            out[x + PAD, 0] = here[x]
            out[x + PAD, 1] = half * (here[min(x + 1, width - 1)] - here[max(x - 1, 0)])
            out[x + PAD, 2] = half * (below[x] - above[x])


@njit(**JIT_OPTIONS)
def warp_(
    first: np.ndarray,
    packed: np.ndarray,
    u: tuple[np.ndarray, ...],
    data: tuple[np.ndarray, ...],
    stride: int,
) -> None:
    """Linearize the data term around the flow `u`: I1(x + u) + g . (u' - u) - I0 = rho + gx u'_x + gy u'_y.

    `first` (H, W) is I0, `packed` I1 as `pack_` wrote it. Writes gx, gy, gx^2 + gy^2 and rho into `data`.
    """
    height, width = first.shape
    line = packed.shape[1] * CHANNELS
    right, bottom = np.float32(width + 1), np.float32(height + 1)
    pixels = packed.reshape(-1)
    corner, image = np.empty(stride, np.int32), np.empty(stride, np.float32)
    wx, wy = np.empty(4 * stride, np.float32), np.empty(4 * stride, np.float32)
    for y in range(height):
        begin, end = y * stride, y * stride + width
        _sampling_positions_(u, begin, np.float32(y), stride, right, bottom, np.int32(line), corner, wx, wy)
        u1, u2, gx, gy = u[0][begin:end], u[1][begin:end], data[0][begin:end], data[1][begin:end]
        for x in range(width):
            image[x], gx[x], gy[x] = _cubic_sum(pixels, np.int64(corner[x]), line, wx, wy, x, stride)
        square, rho, here = data[2][begin:end], data[3][begin:end], first[y]
        for x in range(width):
            square[x] = gx[x] * gx[x] + gy[x] * gy[x]
            rho[x] = image[x] - gx[x] * u1[x] - gy[x] * u2[x] - here[x]
