"""Graphs to ONNX: the only home of ``torch.onnx``."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes import common as passes
from onnxscript import optimizer
from torch.export import ExportedProgram

from ...contracts.contract import Contract, TensorSpec
from ...errors import ExportError, OptionError, first_line
from ...graphs.graph import Graph
from ..program import export_program
from .layers import marking, shallow, stacks_of
from .repeat import UnlikeError, repeat_layers
from .shared_weights import WEIGHTS, SharedWeights
from .storage import write_model
from .translation import marks, translate

OPSETS = range(18, 26)
DEFAULT_OPSET = 18
SCOPES = "pkg.torch.onnx.name_scopes"
DTYPES = {"float32": ir.DataType.FLOAT, "int64": ir.DataType.INT64, "bool": ir.DataType.BOOL}


def check_opset(opset: int) -> None:
    """Raise :class:`OptionError` unless ``opset`` is one that is exported and tested."""
    if opset not in OPSETS:
        raise OptionError(f"opset {opset} is not supported", f"choose {OPSETS[0]} to {OPSETS[-1]}")


def to_onnx(graph: Graph, opset: int = DEFAULT_OPSET) -> ir.Model:
    """Export ``graph``: named and dimensioned by its contract, weights under their state-dict names, simplified.

    Raises:
        ExportError: where the exporter fails, or a dimension that the contract lets vary came out fixed.
    """
    check_opset(opset)
    stacks = stacks_of(graph)
    if stacks:
        first = shallow(graph, stacks)
        with marking():
            program = export_program(first)
        model = translate(program, opset) or from_program(program, f"the {graph.name} graph", opset)
        _name(model, first)
        with contextlib.suppress(UnlikeError):
            repeat_layers(model, stacks, graph.contract, graph.weights())
            return model
    return whole_to_onnx(graph, opset)


def whole_to_onnx(graph: Graph, opset: int = DEFAULT_OPSET) -> ir.Model:
    """As :func:`to_onnx`, with every layer traced."""
    check_opset(opset)
    model = from_program(export_program(graph), f"the {graph.name} graph", opset)
    _name(model, graph)
    return model


def _name(model: ir.Model, graph: Graph) -> None:
    name_weights(model, graph.weights())
    _name_nodes(model.graph)
    _fit_to_contract(model, graph.contract)
    simplify(model)


def name_weights(model: ir.Model, expected: Mapping[str, torch.Tensor]) -> None:
    """State-dict names for the initializers that hold weights: the wrapper's ``model.`` in front goes."""
    for value in list(model.graph.initializers.values()):
        name = (value.name or "").removeprefix("model.")
        if name in expected:
            value.name = name
            value.metadata_props["weight"] = name


def from_program(program: ExportedProgram, what: str, opset: int) -> ir.Model:
    """A program as ONNX, as the exporter gives it. Raises ``ExportError``, naming ``what``, where it cannot."""
    try:
        with torch.no_grad():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=opset,
                optimize=False,
                verbose=False,
                custom_translation_table=marks(),
            )
    except Exception as error:
        raise ExportError(
            f"PyTorch could not export {what} to ONNX: {first_line(error)}", "run again with -v for the whole story"
        ) from error
    assert exported is not None
    return exported.model


def simplify(model: ir.Model) -> None:
    """Compute what is constant, once; compute nothing twice; drop what nobody reads. Weights stay as they are.

    A weight is neither folded nor merged with an equal one: each stands under its state-dict name, bit for bit,
    in PyTorch's layout. Runtimes fold the Transpose in front of it when they load the file.
    """

    def folds(node: ir.Node) -> bool | None:
        return False if any(_is_weight(value) for value in node.inputs) else None

    optimizer.fold_constants(
        model, onnx_shape_inference=False, input_size_limit=1024, output_size_limit=1024, should_fold=folds
    )
    _merge_constants(model.graph)
    passes.CommonSubexpressionEliminationPass()(model)
    passes.RemoveUnusedNodesPass()(model)


def finish(model: ir.Model, contract: Contract, properties: dict[str, str]) -> None:
    """Make ``model`` fit to ship: no path or source line of the machine it was made on, the contract in its
    metadata, and the lowest IR version that its opset allows.
    """
    passes.ClearMetadataAndDocStringPass()(model)
    model.producer_name = "mytx"
    model.producer_version = properties.get("mytx.version", "")
    model.graph.name = contract.graph
    for value, spec in zip(
        [*model.graph.inputs, *model.graph.outputs], [*contract.inputs, *contract.outputs], strict=True
    ):
        value.doc_string = spec.meaning
    outside = {*model.graph.inputs, *model.graph.outputs}
    inside = [value for node in model.graph for value in node.outputs if value not in outside]
    for value in inside:  # the exporter's own names for dimensions; runtimes infer them anew
        value.shape = None
        value.type = None
        value.doc_string = None  # a half that was read from its file has one for what was its output
    weights = [value for graph in model.graphs() for value in graph.initializers.values()]
    for value in [*outside, *inside, *weights]:
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.metadata_props.update(metadata(contract), **properties)
    opset = model.opset_imports[""]
    model.ir_version = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])


def metadata(contract: Contract) -> dict[str, str]:
    """What a file says of itself: ``metadata_props`` under ``mytx.*``. There is no convention to follow."""
    properties = {
        "mytx.graph": contract.graph,
        "mytx.layout": contract.layout,
        "mytx.contract": json.dumps(contract.to_dict(), separators=(",", ":")),
    }
    properties |= {f"mytx.{name}_id": str(value) for name, value in contract.ids.items()}
    polarity = {spec.name: spec.meaning for spec in contract.inputs if spec.role in ("padding", "keep", "attention")}
    properties |= {f"mytx.polarity.{name}": meaning for name, meaning in polarity.items()}
    longest = [axis.maximum for axis in contract.axes.values() if axis.maximum is not None]
    if longest:
        properties["mytx.max_length"] = str(min(longest))
    return properties


def save(model: ir.Model, path: Path, weights: str = WEIGHTS) -> None:
    """Write ``model``. What the file ``weights`` in the same folder holds is referred to, whatever its name; all else
    is in the file.

    Raises:
        OSError: where it cannot be written.
        ExportError: where it would be too large, or is not valid ONNX.
    """
    write_model(model, path, SharedWeights.beside(path, weights))
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise ExportError(
            f"the exporter wrote an invalid {path.name}: {first_line(error)}", "try another --opset"
        ) from error


# --- the steps of to_onnx --------------------------------------------------------------------------------------------


def _name_nodes(graph: ir.Graph) -> None:
    """Names that lead back to the model: ``decoder.layers.3.norm1/LayerNormalization_12``."""
    for index, node in enumerate(graph):
        names = re.findall(r"'([^']*)'", node.metadata_props.get(SCOPES, ""))
        scope = names[-2].removeprefix("model").lstrip(".") if len(names) > 1 else ""
        scope = "" if scope.startswith("_") else scope  # the exporter's own helpers, not modules of the model
        node.name = f"{scope}/{node.op_type}_{index}" if scope else f"{node.op_type}_{index}"


def _fit_to_contract(model: ir.Model, contract: Contract) -> None:
    """Check that the file has what the contract says, then give it the contract's names."""
    symbols: dict[str, str] = {}
    pairs = [
        *zip(model.graph.inputs, contract.inputs, strict=True),
        *zip(model.graph.outputs, contract.outputs, strict=True),
    ]
    for value, spec in pairs:
        _check_value(value, spec, contract.graph, symbols)
    taken = {spec.name for _, spec in pairs}
    for node in model.graph:
        for value in node.outputs:
            if value.name in taken:
                value.name = f"{value.name}/value"
    for value, spec in pairs:
        value.name = spec.name
        value.shape = ir.Shape(spec.labels)
        value.dtype = DTYPES[spec.dtype]


def _check_value(value: ir.Value, spec: TensorSpec, graph: str, symbols: dict[str, str]) -> None:
    where = f"{graph}: {spec.name}"
    if value.dtype != DTYPES[spec.dtype]:
        raise ExportError(f"{where} came out as {value.dtype}, the contract says {spec.dtype}")
    shape = value.shape
    if shape is None or len(shape) != len(spec.axes):
        raise ExportError(f"{where} came out with shape {shape}, the contract says {list(spec.labels)}")
    for found, axis in zip(shape, spec.axes, strict=True):
        if isinstance(axis, int):
            if found != axis:
                raise ExportError(f"{where} came out with a dimension of {found}, the contract says {axis}")
            continue
        if isinstance(found, int):
            raise ExportError(
                f"{where}: the dimension {axis.label} may vary, but the exporter fixed it at {found}",
                "this is a fault of the export, not of your input: please report it",
            )
        if axis.times == 1 and symbols.setdefault(str(found), axis.name) != axis.name:
            raise ExportError(f"{where}: the exporter took {axis.name} and {symbols[str(found)]} for one dimension")


# --- helpers ---------------------------------------------------------------------------------------------------------


def _is_weight(value: ir.Value | None) -> bool:
    return value is not None and "weight" in value.metadata_props


def _merge_constants(graph: ir.Graph) -> None:
    """One initializer for equal small constants, so that what is computed from them is seen to be equal too."""
    first: dict[tuple[object, ...], ir.Value] = {}
    for value in list(graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or _is_weight(value) or tensor.size > 1024:
            continue
        key = (tensor.dtype, tuple(tensor.shape), tensor.tobytes())
        if key in first:
            ir.convenience.replace_all_uses_with(value, first[key])
            assert value.name is not None
            del graph.initializers[value.name]
        else:
            first[key] = value
