"""A second, independent runtime for ONNX: the operators of ``onnx.reference``, in float32 or lifted to float64.

A lifted file computes with its own weights and constants, but without the rounding of float32. If it still differs from
the model in float64, then it computes something else. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from threadpoolctl import ThreadpoolController

from ..cases.case import Array
from ..formats.onnx.inner import subgraphs
from ..formats.onnx.storage import Weights, read_header
from .lifting import LOWER, LiftedEvaluator, lift, lift_constant
from .products import is_product, products_together
from .runtime import Description


class NodeError(RuntimeError):
    """The error of a node that failed.

    Attributes:
        node: the node.
    """

    def __init__(self, node: onnx.NodeProto, reason: Exception) -> None:
        # onnx.reference wraps the error of numpy, which has the reason.
        while isinstance(reason.__cause__, Exception):
            reason = reason.__cause__
        super().__init__(f"{node.name or 'a node'} ({node.op_type}): {' '.join(str(reason).split())}")
        self.node = node


class Watcher(Protocol):
    """Sees the inputs and outputs of every node that depends on the graph's inputs, and may replace them.

    Both methods get the index of the node in the graph and, by the index of each case, a list that may be changed.
    """

    def before(self, node: int, inputs: Mapping[int, list[Any]]) -> None:
        """Called before the node runs on ``inputs``; None is an optional input that is left out."""
        ...

    def after(self, node: int, outputs: Mapping[int, list[Any]]) -> None:
        """Called after the node has computed ``outputs``."""
        ...


class OnnxReference:
    """A graph that the operators of ``onnx.reference`` run.

    Attributes:
        graph: the graph without its initializers.
        weights: the initializers by name, as in the file; large ones are read from the file each time.
        lifted: whether all floats are computed in float64.
        varying: names of values that depend on the inputs; all others are computed once for all cases.
    """

    def __init__(
        self, header: onnx.ModelProto, graph: onnx.GraphProto, weights: Mapping[str, Array], lifted: bool
    ) -> None:
        self.graph = graph
        self.weights = weights
        self.lifted = lifted
        model = onnx.ModelProto()
        model.CopyFrom(header)
        model.graph.CopyFrom(graph)
        self._nodes: list[OpRun] = (LiftedEvaluator if lifted else ReferenceEvaluator)(model).rt_nodes_
        self._reads = [_reads(node) for node in graph.node]
        self._inputs = {value.name: value.type.tensor_type for value in graph.input}
        # Before IR version 4 every initializer was also listed as an input, but callers did not give it.
        self._constant = set(weights) if header.ir_version < 4 else set()
        self._outputs = [value.name for value in graph.output]
        self.varying = set(self._inputs)
        for node, names in zip(graph.node, self._reads, strict=True):
            if self.varying.intersection(names):
                self.varying.update(node.output)
        last = {name: number for number, names in enumerate(self._reads) for name in names}
        self._finished: list[list[str]] = [[] for _ in self._nodes]  # for each node the values to free after it
        for number, node in enumerate(graph.node):
            for name in {*self._reads[number], *node.output} - {*self._outputs, *weights, ""}:
                if last.get(name, number) == number:
                    self._finished[number].append(name)

    @classmethod
    def open(cls, path: str | Path, *, lifted: bool = False) -> OnnxReference:
        """Load the file at ``path``.

        Args:
            path: the file.
            lifted: compute in float64 wherever the file has float32 or less. A cast to float16, or to anything else
                below float32, still rounds, because it is part of what the file computes.

        Raises:
            Exception: any error of reading the file, and of ``onnx`` for an operator that it does not know.
        """
        path = Path(path)
        weights = Weights(path)
        return cls(read_header(path), weights.graph, weights, lifted)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for an array for each input. A lifted graph returns all floats in float64.

        Raises:
            NodeError: if a node fails.
            ValueError: if the inputs are not those of the graph.
        """
        (result,) = self.run_all([inputs])
        if isinstance(result, Exception):
            raise result
        return result

    def run_all(
        self, many: Sequence[Mapping[str, Array]], watcher: Watcher | None = None
    ) -> list[dict[str, Array] | Exception]:
        """As :meth:`run` for each case in ``many``; for a case that fails, its exception.

        Each node runs for all cases before the next one, so that a large weight is read once and then freed.
        """
        results: list[dict[str, Array] | Exception] = [{}] * len(many)
        cases: dict[int, dict[str, Any]] = {}
        for case, inputs in enumerate(many):
            try:
                cases[case] = self._feed(inputs)
            except ValueError as error:
                results[case] = error
        shared: dict[str, Any] = {"": None}
        # NaN and infinity are results here; the comparison finds them.
        with _blas().limit(limits=1), np.errstate(all="ignore"):
            for number, finished in enumerate(self._finished):
                for case, failure in self._step(number, cases, shared, watcher).items():
                    results[case] = failure
                    del cases[case]
                for values in (shared, *cases.values()):
                    for name in finished:
                        values.pop(name, None)
        for case, values in cases.items():
            try:
                results[case] = {name: np.asarray(self._value(name, values, shared)) for name in self._outputs}
            except KeyError as error:
                results[case] = ValueError(f"nothing in the graph makes its output {error}")
        return results

    def describe(self) -> Description:
        """onnx.reference, its version, and the tensors of the graph; in a lifted graph floats are ``float64``."""

        def tensors(values: Sequence[onnx.ValueInfoProto]) -> dict[str, tuple[str, tuple[str | int, ...]]]:
            described = {}
            for value in values:
                kind = value.type.tensor_type
                dims = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in kind.shape.dim)
                described[value.name] = (str(self._dtype(kind.elem_type)), dims)
            return described

        name = "onnx.reference, float64" if self.lifted else "onnx.reference"
        inputs = [value for value in self.graph.input if value.name not in self._constant]
        return Description(name, onnx.__version__, tensors(inputs), tensors(self.graph.output))

    def _dtype(self, elem_type: int) -> np.dtype[Any]:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(elem_type)
        return np.dtype(np.float64) if self.lifted and dtype in LOWER else dtype

    def _feed(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        wrong = sorted(set(inputs) - set(self._inputs)) + sorted(set(self._inputs) - set(inputs) - set(self.weights))
        if wrong:
            raise ValueError(f"the graph takes {', '.join(self._inputs)}, not {', '.join(inputs)}: see {wrong[0]}")
        fed = {}
        for name, kind in self._inputs.items():
            value = np.asarray(inputs.get(name, self.weights.get(name)))
            value = lift(value) if self.lifted else value
            if value.dtype != self._dtype(kind.elem_type):
                raise ValueError(f"{name} is {value.dtype}, the graph takes {self._dtype(kind.elem_type)}")
            fed[name] = value
        return fed

    def _value(self, name: str, values: Mapping[str, Any], shared: Mapping[str, Any]) -> Any:
        """A value of a case, or one that is the same for all cases: computed once, or a weight."""
        for known in (values, shared):
            if name in known:
                return known[name]
        return lift_constant(self.weights[name]) if self.lifted else self.weights[name]

    def _step(
        self, number: int, cases: dict[int, dict[str, Any]], shared: dict[str, Any], watcher: Watcher | None
    ) -> dict[int, Exception]:
        """Run a node for all cases, and put its outputs into ``cases`` or ``shared``; return errors by case."""
        node, reads = self.graph.node[number], self._reads[number]
        try:
            common = {name: self._value(name, {}, shared) for name in reads if name not in self.varying}
            if self.varying.isdisjoint(reads):
                if cases:
                    shared.update(zip(node.output, self._run_node(number, common), strict=False))
                return {}
        except Exception as error:
            return dict.fromkeys(cases, NodeError(node, error))
        known = {
            case: common | {name: values[name] for name in reads if name in values} for case, values in cases.items()
        }
        outputs: dict[int, list[Any]] = {}
        failures: dict[int, Exception] = {}
        inputs: dict[int, list[Any]] = {}
        for case, values in known.items():
            if missing := [name for name in node.input if name not in values]:  # nodes are in a wrong order
                failures[case] = NodeError(node, ValueError(f"nothing before it gives {missing[0]}"))
            else:
                inputs[case] = [values[name] for name in node.input]
        if watcher:
            watcher.before(number, inputs)
        run = partial(self._run_node, number, common)
        together = products_together(run, inputs) if is_product(node, common) else {}
        for case, arrays in inputs.items():
            try:
                outputs[case] = together[case] if together else self._run_node(number, known[case], arrays)
            except Exception as error:
                failures[case] = NodeError(node, error)
        if watcher:
            watcher.after(number, outputs)
        for case, arrays in outputs.items():
            cases[case].update(zip(node.output, arrays, strict=False))
        return failures

    def _run_node(self, number: int, known: Mapping[str, Any], inputs: Sequence[Any] | None = None) -> list[Any]:
        """The outputs of a node.

        Args:
            number: index of the node.
            known: values by name, which its subgraphs may read.
            inputs: its inputs in order; None takes them from ``known``.
        """
        node: Any = self._nodes[number]
        arrays = [known[name] for name in node.input] if inputs is None else inputs
        return list(node.run(*arrays, **({"context": dict(known)} if node.need_context() else {})))


@cache
def _blas() -> ThreadpoolController:
    """The threads of numpy's own products, which are far too small here for two. OpenBLAS starts them all the same, and
    while they wait for each other they spin: beside other work that took four times the CPU and the time.
    """
    return ThreadpoolController().select(user_api="blas")


def _reads(node: onnx.NodeProto) -> list[str]:
    """The names that a node reads, including those that its subgraphs read from outside."""
    names = dict.fromkeys(node.input)
    for graph in subgraphs(node):
        inside = {value.name for value in [*graph.input, *graph.initializer]}
        for inner in graph.node:
            names.update(dict.fromkeys(name for name in _reads(inner) if name not in inside))
            inside.update(inner.output)
        names.update(dict.fromkeys(value.name for value in graph.output if value.name not in inside))
    return list(names)
