"""Products with a weight, for all cases at once: on a large model reading the weight is what each of them costs.

A row of a product depends on no other row, so the rows of all cases can stand in one matrix. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

Outputs = list[Any]


def is_product(node: onnx.NodeProto, common: Mapping[str, Any]) -> bool:
    """Whether ``node`` multiplies rows that depend on the case by a matrix that does not.

    Args:
        node: of a graph.
        common: the values that it reads and that are the same for all cases.
    """
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("MatMul", "Gemm") or node.input[0] in common:
        return False
    weight: Any = common.get(node.input[1])
    if np.ndim(weight) != 2:
        return False
    if node.op_type == "MatMul":
        return True
    turned = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return not turned and all(np.ndim(common.get(name, np.zeros((1, 1)))) == 1 for name in node.input[2:] if name)


def products_together(
    run: Callable[[Sequence[Any]], Outputs], inputs: Mapping[int, Sequence[Any]]
) -> dict[int, Outputs]:
    """What such a node gives for each case; nothing where they do not fit together.

    Args:
        run: the node.
        inputs: of it, for each case.
    """
    rows = {case: np.reshape(arrays[0], (-1, arrays[0].shape[-1])) for case, arrays in inputs.items() if arrays[0].ndim}
    kinds = {(matrix.shape[1], matrix.dtype) for matrix in rows.values()}
    if len(rows) < max(2, len(inputs)) or len(kinds) > 1 or any(arrays[0].ndim < 2 for arrays in inputs.values()):
        return {}
    others = next(iter(inputs.values()))[1:]
    try:
        (product,) = run([np.concatenate(list(rows.values())), *others])
        parts = np.split(product, np.cumsum([len(matrix) for matrix in rows.values()])[:-1])
        return {
            case: [part.reshape(*inputs[case][0].shape[:-1], part.shape[-1])]
            for case, part in zip(rows, parts, strict=True)
        }
    except Exception:  # each by itself then, so that every one says what is wrong with it
        return {}
