"""Equal nodes are created only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from exported_models import Exported
from mytx.exporter.search.nodes import FLOAT, INT, Nodes, tensor


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside of it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_in(attribute.g)


def types_in(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for node in graph.node]


@pytest.fixture(scope="module")
def nested() -> onnx.ModelProto:
    """Two rounds of three rounds: total += exp(x) * (outer + 1), and once -x where the total is below 0."""
    op = Nodes()
    x = tensor("x", FLOAT, 0)

    def outer(op: Nodes, state: dict[str, ir.Value]) -> tuple[ir.Value, dict[str, ir.Value]]:
        count = op("Add", state["count"], op.constant(1))

        def inner(op: Nodes, carried: dict[str, ir.Value]) -> tuple[ir.Value, dict[str, ir.Value]]:
            factor = op("Cast", count, to=FLOAT)
            total = op("Add", carried["total"], op("Mul", op("Exp", x), factor))
            low = op("Less", total, op.constant(0, np.float32))
            (total,) = op.choose("low", low, lambda op: [op("Neg", x)], lambda op: [total])
            return op.constant(True, np.bool_), {"total": total}

        kinds = {"total": (FLOAT, 0)}
        after = op.loop("inner", op.constant(3), {"total": state["total"]}, kinds, inner)
        return op.constant(True, np.bool_), {"count": count, **after}

    start = {"count": op.constant(0), "total": op.constant(0, np.float32)}
    end = op.loop("outer", op.constant(2), start, {"count": (INT, 0), "total": (FLOAT, 0)}, outer)
    result = op("Identity", end["total"])
    result.name, result.type, result.shape = "y", ir.TensorType(FLOAT), ir.Shape([])
    graph = ir.Graph([x], [result], nodes=op.list, opset_imports={"": 18}, name="nested")
    model = ir.to_proto(ir.Model(graph, ir_version=8))
    onnx.checker.check_model(model)
    return model


def test_a_node_goes_to_the_outermost_loop_that_knows_its_inputs(nested: onnx.ModelProto) -> None:
    _, outer, inner, *branches = graphs_in(nested.graph)
    assert {"Exp", "Cast", "Add", "Mul"} <= set(types_in(outer))
    assert set(types_in(inner)) == {"Add", "Less", "If", "Identity"}
    assert ["Neg"] in [types_in(branch) for branch in branches]


def test_what_was_moved_computes_the_same(nested: onnx.ModelProto) -> None:
    session = onnxruntime.InferenceSession(nested.SerializeToString())
    x = np.array(0.5, np.float32)
    expected = np.exp(x) * 9
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-6)
    np.testing.assert_allclose(ReferenceEvaluator(nested).run(None, {"x": x})[0], expected, rtol=1e-6)


@pytest.fixture(scope="module")
def search(exports: Callable[[str], Exported]) -> Callable[[bool], onnx.ModelProto]:
    return lambda beams: onnx.load(exports("translation").path("generate" if beams else "greedy"))


@pytest.mark.parametrize("beams", [False, True], ids=["greedy", "beams"])
def test_a_step_of_a_search_computes_nothing_that_is_the_same_in_all(
    beams: bool, search: Callable[[bool], onnx.ModelProto]
) -> None:
    """But what is computed of weights alone, which onnxruntime does when it loads the file."""
    outer, phases, steps, *_ = graphs_in(search(beams).graph)
    assert steps.name == "steps"
    varying = {value.name for value in steps.input}
    fixed = {tensor.name for graph in (outer, steps) for tensor in graph.initializer}
    fixed |= {name for node in [*outer.node, *phases.node] if node.op_type == "Constant" for name in node.output}
    assert not fixed & varying
    for node in steps.node:
        inside = {
            name
            for attribute in node.attribute
            for inner in graphs_in(attribute.g)
            for n in inner.node
            for name in n.input
        }
        if varying & {*node.input, *inside} or node.op_type == "Identity":
            varying.update(node.output)
        else:
            assert set(node.input) <= fixed, f"{node.name} ({node.op_type})"
            fixed.update(node.output)


@pytest.mark.parametrize("beams", [False, True], ids=["greedy", "beams"])
def test_weights_of_products_are_constants_of_the_loops_own_body(
    beams: bool, search: Callable[[bool], onnx.ModelProto]
) -> None:
    """Where onnxruntime packs them: weights themselves, or what is made of them there and of nothing else."""
    outer, phases, steps, *_ = graphs_in(search(beams).graph)
    weights = {tensor.name for tensor in steps.initializer}
    made = {name: node for node in steps.node for name in node.output}
    products = [node for node in steps.node if node.op_type == "Gemm"]
    assert len(products) > 6
    for node in products:
        sources = [node.input[1]]
        while made.keys() & set(sources):
            sources = [name for source in sources for name in (made[source].input if source in made else [source])]
        assert weights & set(sources)
        assert {name for name in sources if name not in weights} <= constants(outer) | constants(phases)
    assert not phases.initializer
    assert not weights & {tensor.name for tensor in outer.initializer}


def constants(graph: onnx.GraphProto) -> set[str]:
    return {name for node in graph.node if node.op_type == "Constant" for name in node.output}
