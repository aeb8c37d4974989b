"""Programs of our own models to ONNX: what ``torch.onnx.export`` does, without what our models do not need.

``torch.onnx.export`` reads the sources of all operators that it knows anew for each graph, and traces each a second
time to decompose operators that it does not know. The graphs of our models consist of operators that it knows. Measured
for a graph of one layer, the two are four fifths of its time. Both need parts of PyTorch that are not public: where a
release lacks them, or an operator is not known, the public function does it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnxscript import values, version_converter
from torch.export import ExportedProgram
from torch.fx.experimental import _config

from .layers import DOMAIN

try:
    from torch.onnx._internal.exporter import _core, _fx_passes
    from torch.onnx._internal.exporter._registration import ONNXRegistry
except ImportError:
    _core = None  # type: ignore[assignment]


def _mark(name: str) -> Callable[..., Any]:
    """The ONNX node of a mark, as a function that the exporter can call."""
    kinds = ["tensor(float)"]
    schema = onnx.defs.OpSchema(
        name,
        DOMAIN,
        1,
        inputs=[onnx.defs.OpSchema.FormalParameter("x", "T")],
        outputs=[onnx.defs.OpSchema.FormalParameter("y", "T")],
        type_constraints=[("T", kinds, "")],
        attributes=[onnx.defs.OpSchema.Attribute("kind", onnx.defs.OpSchema.AttrType.INT, required=True)],
    )
    make = values.Op(values.Opset(DOMAIN, 1), name, schema)

    def mark(x: Any, kind: int) -> Any:
        return make(x, kind=kind)

    return mark


def marks() -> dict[Callable[..., Any], Callable[..., Any]]:
    """How ``torch.onnx.export`` translates the marks of :mod:`.layers`."""
    ops = torch.ops.mytx
    return {ops.layer_input.default: _mark("layer_input"), ops.layer_output.default: _mark("layer_output")}


def translate(program: ExportedProgram, opset: int) -> ir.Model | None:
    """``program`` as ONNX with marks; None where only ``torch.onnx.export`` can do it, as it still can then."""
    if _core is None:
        return None
    try:
        return _translated(program, opset)
    except (AttributeError, TypeError):  # a release in which these functions are others
        return None


def _translated(program: ExportedProgram, opset: int) -> ir.Model | None:
    registry = _registry(opset)
    program._graph_module = _fx_passes.remove_assertion_nodes(program.graph_module)
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    for node in nodes:
        _rename(node)
    if not all(registry.is_registered(node.target) for node in nodes):
        return None
    config: Any = _config  # its functions are added when it is imported
    with config.patch(backed_size_oblivious=True):  # as torch.onnx.export has it
        _fx_passes.insert_type_promotion_nodes(program.graph_module)
    model = _core._exported_program_to_onnx_program(program, registry=registry).model
    version_converter.convert_version(model, opset, fallback=True)
    return model


def _rename(node: torch.fx.Node) -> None:
    """The operator by the name that the exporter knows, where it has two."""
    if node.target is torch.ops.aten.__and__.Tensor:
        node.target = torch.ops.aten.bitwise_and.Tensor
    elif node.target is torch.ops.aten.to.dtype and len(node.args) == 2 and not node.kwargs:
        x, dtype = node.args
        node.target, node.args, node.kwargs = torch.ops.aten._to_copy.default, (x,), {"dtype": dtype}


@functools.cache
def _registry(opset: int) -> ONNXRegistry:
    registry = ONNXRegistry.from_torchlib(opset_version=opset)
    for operator, function in marks().items():
        registry.register_op(operator, function)
    return registry
