"""Vectors of eight float32 for numba intrinsics: operators on `Lanes` emit LLVM's portable vector instructions.

LLVM vectorizes simple numba loops by itself, but checks at run time, row by row, that no array overlaps another; with
the 15 arrays of TV-L1 this takes longer than part of a row. Code emitted by an intrinsic needs no such check.
docs/concepts/flow-kernels.md explains this and the rounding.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

WIDTH = 8
FLOAT = ir.FloatType()
VECTOR = ir.VectorType(FLOAT, WIDTH)


class Lanes:
    """An LLVM vector value; operators emit elementwise instructions with `builder`."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    def __add__(self, other: "Lanes") -> "Lanes":
        return Lanes(self.builder, self.builder.fadd(self.value, other.value))

    def __sub__(self, other: "Lanes") -> "Lanes":
        return Lanes(self.builder, self.builder.fsub(self.value, other.value))

    def __mul__(self, other: "Lanes") -> "Lanes":
        return Lanes(self.builder, self.builder.fmul(self.value, other.value))

    def __truediv__(self, other: "Lanes") -> "Lanes":
        return Lanes(self.builder, self.builder.fdiv(self.value, other.value))

    def multiply_add(self, factor: "Lanes", summand: "Lanes") -> "Lanes":
        """Return self * factor + summand, rounded once if the processor has a fused multiply-add."""
        return self._call("llvm.fmuladd", factor, summand)

    def minimum(self, other: "Lanes") -> "Lanes":
        less = self.builder.fcmp_ordered("<", self.value, other.value)
        return Lanes(self.builder, self.builder.select(less, self.value, other.value))

    def maximum(self, other: "Lanes") -> "Lanes":
        greater = self.builder.fcmp_ordered(">", self.value, other.value)
        return Lanes(self.builder, self.builder.select(greater, self.value, other.value))

    def less(self, other: "Lanes") -> Any:
        """Return the mask self < other, one bit per lane, for `select_lanes`."""
        return self.builder.fcmp_ordered("<", self.value, other.value)

    def floor(self) -> "Lanes":
        return self._call("llvm.floor")

    def sqrt(self) -> "Lanes":
        return self._call("llvm.sqrt")

    def to_float64(self) -> "Lanes":
        return Lanes(self.builder, self.builder.fpext(self.value, ir.VectorType(ir.DoubleType(), WIDTH)))

    def to_float32(self) -> "Lanes":
        return Lanes(self.builder, self.builder.fptrunc(self.value, VECTOR))

    def magnitude(self) -> "Lanes":
        return self._masked(0x7FFFFFFF)

    def power_of_two(self) -> "Lanes":
        """Return the largest power of two not above each (positive) lane."""
        return self._masked(0x7F800000)

    def _masked(self, bits: int) -> "Lanes":
        vector_type = ir.VectorType(ir.IntType(32), WIDTH)
        kept = self.builder.and_(
            self.builder.bitcast(self.value, vector_type), ir.Constant(vector_type, [bits] * WIDTH)
        )
        return Lanes(self.builder, self.builder.bitcast(kept, VECTOR))

    def _call(self, name: str, *others: "Lanes") -> "Lanes":
        vector_type = self.value.type
        bits = 64 if isinstance(vector_type.element, ir.DoubleType) else 32
        name = f"{name}.v{vector_type.count}f{bits}"
        function_type = ir.FunctionType(vector_type, [vector_type] * (1 + len(others)))
        function = cgutils.get_or_insert_function(self.builder.module, function_type, name)
        return Lanes(self.builder, self.builder.call(function, [self.value, *(other.value for other in others)]))


def sum_lanes(lanes: Lanes) -> Any:
    """Return the sum of the lanes, added from first to last, as an LLVM value."""
    builder, total = lanes.builder, FLOAT(0.0)
    for lane in range(WIDTH):
        total = builder.fadd(total, builder.extract_element(lanes.value, ir.IntType(32)(lane)))
    return total


def select_lanes(where: Any, first: Lanes, second: Lanes) -> Lanes:
    """Return `first` where the mask `where` is set, else `second`."""
    return Lanes(first.builder, first.builder.select(where, first.value, second.value))


def divide(numerators: list[Lanes], divisor: Lanes) -> list[Lanes]:
    """Divide several numerators by one divisor, correctly rounded, with a single division.

    The product with the rounded reciprocal, corrected by its remainder (Markstein 1990); needs fused multiply-add.
    """
    reciprocal = splat(divisor.builder, 1.0) / divisor
    negative_divisor = splat(divisor.builder, 0.0) - divisor
    quotients = [numerator * reciprocal for numerator in numerators]
    remainders = [
        negative_divisor.multiply_add(q, numerator) for q, numerator in zip(quotients, numerators, strict=True)
    ]
    return [remainder.multiply_add(reciprocal, q) for remainder, q in zip(remainders, quotients, strict=True)]


def hypot(x: Lanes, y: Lanes) -> Lanes:
    """Return the length of (x, y) as C's double-precision hypot rounds it to float32, for use in 1 + length.

    float64 is slow. A float32 root corrected by its exact remainder gives the same result, unless it is close to the
    midpoint of two float32 values; then, once in thousands of calls, the vector is computed again in float64.
    """
    builder = x.builder
    zero, half = splat(builder, 0.0), splat(builder, 0.5)
    xx, yy = x * x, y * y
    large, small = xx.maximum(yy), xx.minimum(yy)
    square = large + small
    rounding_residual = x.multiply_add(x, zero - xx) + y.multiply_add(y, zero - yy) + (small - (square - large))
    square = square.maximum(splat(builder, 1e-20))  # below, 1 + length is 1; avoids a division by a root of 0
    root = square.sqrt()
    correction = ((zero - root).multiply_add(root, square) + rounding_residual) * (half / root)
    length = root + correction
    rounding_error = ((root - length) + correction).magnitude()
    middle = length.power_of_two() * splat(builder, 2.0**-24 * (1 - 2.0**-16))
    result = cgutils.alloca_once_value(builder, length.value)
    near_midpoint = builder.bitcast(middle.less(rounding_error), ir.IntType(WIDTH))
    with cgutils.if_unlikely(builder, builder.icmp_unsigned("!=", near_midpoint, near_midpoint.type(0))):
        x64, y64 = x.to_float64(), y.to_float64()
        builder.store((x64 * x64 + y64 * y64).sqrt().to_float32().value, result)
    return Lanes(builder, builder.load(result))


def splat(builder: Any, number: Any, width: int = WIDTH) -> Lanes:
    """Broadcast a number, a Python float or an LLVM value, to all lanes."""
    vector_type = ir.VectorType(FLOAT, width)
    if isinstance(number, float):
        return Lanes(builder, ir.Constant(vector_type, [number] * width))
    first = builder.insert_element(ir.Constant(vector_type, ir.Undefined), number, ir.IntType(32)(0))
    return shuffle(Lanes(builder, first), Lanes(builder, first), [0] * width)


def shuffle(first: Lanes, second: Lanes, lanes: list[int]) -> Lanes:
    """Select lanes of two vectors by index: 0 ... for `first`, then on for `second`."""
    builder = first.builder
    chosen = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    return Lanes(builder, builder.shuffle_vector(first.value, second.value, chosen))


def load(builder: Any, data: Any, index: Any, width: int = WIDTH) -> Lanes:
    """Load `data[index : index + width]` from a pointer to float32."""
    vector_type = ir.VectorType(FLOAT, width)
    return Lanes(builder, builder.load(_element_pointer(builder, data, index, vector_type), align=4))


def load_scalar(builder: Any, data: Any, index: Any) -> Any:
    """Load `data[index]` as an LLVM value."""
    return builder.load(_element_pointer(builder, data, index, FLOAT), align=4)


def store(builder: Any, data: Any, index: Any, lanes: Lanes) -> None:
    """Store `data[index : index + 8] = lanes`."""
    builder.store(lanes.value, _element_pointer(builder, data, index, VECTOR), align=4)


def _element_pointer(builder: Any, data: Any, index: Any, vector_type: Any) -> Any:
    return builder.bitcast(builder.gep(data, [index], source_etype=FLOAT), vector_type.as_pointer())


def unpack_arguments(context: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    """Return the arguments of an intrinsic, with arrays (also in tuples) as pointers to their first value."""
    return [
        _unpack_argument(context, builder, numba_type, value)
        for numba_type, value in zip(signature.args, arguments, strict=True)
    ]


def _unpack_argument(context: Any, builder: Any, numba_type: Any, value: Any) -> Any:
    if isinstance(numba_type, types.Array):
        return context.make_array(numba_type)(context, builder, value).data
    if isinstance(numba_type, types.UniTuple):
        items = [builder.extract_value(value, i) for i in range(numba_type.count)]
        return [_unpack_argument(context, builder, numba_type.dtype, item) for item in items]
    return value
