"""Running a float32 ONNX file in float64 ("lifted") with the operators of ``onnx.reference``. Imports no torch.

Constants in a file, such as sqrt(d_model) or an epsilon, are rounded to float32. In float64 this rounding alone causes
up to 0.18 times the error of float32 (measured on every kind of model). So a constant that is the float32 nearest to a
simple number is replaced by that number. An error larger than this rounding is not hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_cast import cast_to

from ..cases.case import Array
from ..formats.quantisation import unpacked

ROOTS = 2**20  # the largest integer whose roots are recognised: embeddings and heads are not wider
# Float dtypes below float64 that are lifted.
LOWER = {
    onnx.helper.tensor_dtype_to_np_dtype(dtype)
    for dtype in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
}


def lift(value: Any) -> Any:
    """An array of float32 or less converted to float64; anything else unchanged."""
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype in LOWER else value


def lift_constant(value: Any) -> Any:
    """As :func:`lift`, but a single float32 number is replaced by the number that it was rounded from; see
    :func:`exact`.
    """
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype == np.float32:
        return np.full(value.shape, exact(np.float32(value.item())))
    return lift(value)


def exact(number: np.float32) -> float:
    """The number that a float32 was rounded from, if that is a simple one; otherwise the float32 itself.

    Simple numbers are ``n ** (+-1/2)`` and ``n ** (+-1/4)`` for an integer n, and decimals of at most six digits.

    >>> exact(np.float32(128**0.5)) == 128**0.5, exact(np.float32(1e-5)) == 1e-5
    (True, True)
    """
    size = abs(float(number))
    if not 0 < size < math.inf:
        return float(number)
    for power in (2, 4):
        for inverse in (1, -1):
            root = round(size ** (inverse * power)) if 0.5 < size ** (inverse * power) < ROOTS else 0
            found = root ** (inverse / power) if root else 0.0
            if np.float32(found) == np.float32(size):
                return math.copysign(found, number)
    short = float(f"{number:.6g}")
    return short if np.float32(short) == number else float(number)


class Cast(OpRun):
    """Casts to float64 where the file casts to float32. A cast to less still rounds; the result is lifted again."""

    def _run(self, x: Array, to: Any = None, saturate: int = 1, round_mode: str = "up") -> tuple[Array]:
        return (cast_to(x, TensorProto.DOUBLE if to == TensorProto.FLOAT else to, bool(saturate), round_mode),)


class Erf(OpRun):
    """Erf in float64: the one of onnx.reference rounds to float32."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=[np.float64])(x),)


class MatMul(OpRun):
    """A product of matrices."""

    def _run(self, a: Any, b: Any) -> tuple[Array]:
        return (_product(a, b),)


class DynamicQuantizeLinear(OpRun):
    """Scale and zero point as they are, and no rounding: what reads those of other activations is wrong here, too."""

    def _run(self, x: Any) -> tuple[Array, Array, Array]:
        low, high = min(0.0, float(x.min(initial=0.0))), max(0.0, float(x.max(initial=0.0)))
        scale = (high - low) / 255 or 1.0
        zero = np.rint(-low / scale)
        return x / scale + zero, np.array(scale), np.array(zero)


class MatMulInteger(OpRun):
    """A product of numbers that need not be integers. Zero points are for a whole matrix, as ours are."""

    def _run(self, a: Any, b: Any, a_zero: Any = 0.0, b_zero: Any = 0.0) -> tuple[Array]:
        return (_product(a - a_zero, np.asarray(b, np.float64) - b_zero),)


class MatMulNBits(OpRun):
    """onnxruntime's product with 4-bit weights. No rounding of activations, either."""

    op_domain = "com.microsoft"

    def _run(
        self, x: Any, integers: Any, scales: Any, zeros: Any = None, K: int = 0, bits: int = 4, **_: Any
    ) -> tuple[Array]:
        return (_product(x, _dequantised(integers, scales, zeros, bits)[:, :K].T),)


def _dequantised(integers: Array, scales: Array, zeros: Array | None, bits: int) -> Array:
    """The matrix of 4-bit integers with a scale, and perhaps a zero point, for each block of a row."""
    if bits != 4:
        raise ValueError(f"weights of {bits} bits")
    rows = unpacked(integers).reshape(*scales.shape, -1).astype(np.float64)
    if zeros is not None:
        rows -= unpacked(zeros)[:, : scales.shape[1], None]
    found: Array = (rows * np.asarray(scales, np.float64)[..., None]).reshape(len(rows), -1)
    return found


OPERATORS = [Cast, DynamicQuantizeLinear, Erf, MatMul, MatMulInteger, MatMulNBits]


def _product(a: Any, b: Any) -> Array:
    """One product if the right side is one matrix: numpy does one for each matrix on the left, which takes 7 times as
    long.
    """
    if a.ndim > 2 and b.ndim == 2:
        result: Array = (a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[-1])
        return result
    return np.asarray(np.matmul(a, b))


class LiftedEvaluator(ReferenceEvaluator):
    """An evaluator that converts every output of a node in float32 or less to float64.

    onnx.reference also creates one for each subgraph, and for each operator that it defines as a function.
    """

    def __init__(self, proto: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(proto, *arguments, **{**options, "new_ops": OPERATORS})

    def _init(self) -> None:
        super()._init()
        self.rt_inits_ = {name: lift_constant(value) for name, value in self.rt_inits_.items()}
        for node in self.rt_nodes_:
            for attribute in node.onnx_node.attribute:
                if attribute.type == onnx.AttributeProto.FLOAT:
                    setattr(node, attribute.name, exact(np.float32(attribute.f)))
            if getattr(node, "softmax_precision", None) == TensorProto.FLOAT:
                node.softmax_precision = TensorProto.DOUBLE
            node.run = _lifting(node.run, lift_constant if node.onnx_node.op_type == "Constant" else lift)


def _lifting(run: Callable[..., Sequence[Any]], lift_value: Callable[[Any], Any]) -> Callable[..., list[Any]]:
    def lifted(*inputs: Any, **options: Any) -> list[Any]:
        return [lift_value(value) for value in run(*inputs, **options)]

    return lifted
