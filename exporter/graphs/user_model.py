"""The graphs of a user's own model with the user's contracts, after a check that the two fit each other."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..cases.case import Array, Case, sizes_of
from ..cases.masks import all_open, hide_first, is_padding
from ..cases.plan import disturb, example, make_plan
from ..contracts.contract import Contract, TensorSpec, length_axis
from ..contracts.declare import NAME, CustomGraph
from ..errors import OptionError, first_line
from .graph import Graph
from .modules import GraphModule
from .parameters import named_tensors, untied
from .precision import in_float64
from .running import evaluating, kept_buffers, plain_torch, run_model, same
from .user_code import check_float32

FORWARD = "forward"
NEAR = 1e-3  # relative to the largest value: results in float32 and float64 that differ by less only differ by rounding


class Called(GraphModule):
    """Calls a method or submodule of a model with the contract's inputs as keyword arguments."""

    method: str

    def forward(self, **inputs: Tensor) -> Any:
        """The result of the method: a tensor, or several in a tuple or list."""
        return tensors_of(method_of(self.model, self.method)(**inputs))

    def arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs unchanged."""
        return dict(inputs)


def tensors_of(output: Any) -> Any:
    """``output``, if it can be the output of a graph: a tensor, a tuple or a list. Raises ``TypeError`` otherwise."""
    if isinstance(output, Mapping):
        raise TypeError(f"it gives a {type(output).__name__} with {', '.join(map(str, output))}, not tensors")
    if not isinstance(output, (Tensor, tuple, list)):
        raise TypeError(f"it gives a {type(output).__name__}, not tensors")
    return output


def method_of(model: nn.Module, method: str) -> Any:
    """The method or submodule with this name; ``forward`` is the model itself, so that its hooks run."""
    return model if method == FORWARD else attrgetter(method)(model)


def custom_graphs(model: nn.Module, graphs: Sequence[CustomGraph]) -> dict[str, Graph]:
    """The graphs of ``model``, by name, after a check that they match their contracts.

    Args:
        model: a model in float32. Modes and buffers are restored afterwards.
        graphs: the graphs to export.

    Raises:
        OptionError: if a contract does not fit, or the model cannot be exported.
    """
    check_float32(model)
    names = [item.contract.graph for item in graphs]
    if strange := [name for name in names if not NAME.fullmatch(name)]:
        raise OptionError(f"{strange[0]!r} is no name for a graph", "make it with mytx.exporter.contracts.graph")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise OptionError(f"two graphs are called {twice[0]}", "each needs a name of its own")
    if not names:
        raise OptionError("there is no graph to export", "give at least one")
    found = {}
    with evaluating(model), plain_torch(), kept_buffers(model) as changed:
        for item in graphs:
            _check_arguments(model, item)
            _check_names(model, item.contract)
            names = [spec.name for spec in item.contract.inputs]
            module = _with_signature(item.method, names)(model)
            graph = Graph(item.contract, module, scopes=())
            _check_fit(graph)
            if name := changed():
                raise OptionError(
                    f"graph {graph.name}: running the model changes its {name}",
                    "a model that changes its own state cannot be exported",
                )
            graph = replace(graph, held=_weights_read(model, graph))
            found[graph.name] = replace(graph, contract=_with_opened(graph))
    return found


def _with_signature(method: str, names: Sequence[str]) -> type[Called]:
    """A class whose ``forward`` has a signature with the inputs' names: torch.export reads it."""

    def forward(self: Called, **inputs: Tensor) -> Any:
        return Called.forward(self, **inputs)

    kinds = inspect.Parameter
    parameters = [kinds(name, kinds.KEYWORD_ONLY) for name in names]
    forward.__signature__ = inspect.Signature([kinds("self", kinds.POSITIONAL_ONLY), *parameters])  # type: ignore[attr-defined]
    return type("Called", (Called,), {"method": method, "forward": forward})


# --- does it fit? ----------------------------------------------------------------------------------------------------


def _check_arguments(model: nn.Module, item: CustomGraph) -> None:
    name, where = type(model).__name__, f"graph {item.contract.graph}"
    try:
        target = method_of(model, item.method)
    except AttributeError as error:
        raise OptionError(f"{where}: {name} has no {item.method}", "name a method or a submodule") from error
    except Exception as error:  # raised by a property
        raise OptionError(f"{where}: {item.method} of {name} fails: {first_line(error)}", "correct it") from error
    function = target.forward if isinstance(target, nn.Module) else target
    if not callable(function):
        raise OptionError(f"{where}: {item.method} of {name} cannot be called", "name a method or a submodule")
    signature = inspect.signature(function)
    try:
        signature.bind(**{spec.name: None for spec in item.contract.inputs})
    except TypeError as error:
        raise OptionError(
            f"{where}: {item.method} of {name} takes {', '.join(signature.parameters) or 'nothing'}: {error}",
            "name the inputs like its arguments; each argument without a default needs an input",
        ) from error


def _check_names(model: nn.Module, contract: Contract) -> None:
    """Check that no tensor has the name of a weight: in a file, names of weights, inputs and outputs are all unique."""
    weights = named_tensors(model)
    if taken := [spec.name for spec in (*contract.inputs, *contract.outputs) if spec.name in weights]:
        raise OptionError(f"graph {contract.graph}: a weight of the model is called {taken[0]}, too", "choose another")


def _check_fit(graph: Graph) -> None:
    """Run the model with the lengths of the export, and with the largest and smallest case of the plan."""
    plan = [case for case in make_plan(graph.contract) if case.group == "shapes"]
    amount = [sum(sizes_of(graph.contract, case).values()) for case in plan]
    for case in (example(graph.contract), plan[int(np.argmax(amount))], plan[int(np.argmin(amount))]):
        outputs = run_model(graph, case.inputs)
        check_outputs(graph.contract, case, outputs)
        if not all(same(*pair) for pair in zip(outputs, run_model(graph, case.inputs), strict=True)):
            raise OptionError(
                f"graph {graph.name}: the model gives another result each time",
                "does it have dropout in evaluation mode, random numbers, or a state?",
            )


def _with_opened(graph: Graph) -> Contract:
    """The contract with :attr:`Contract.opened`: the masks whose first position must be visible.

    Hiding it may leave a query nothing to attend to. With masks of -inf the result is then NaN; with masks of -1e9 it
    is finite, but float32 and float64 differ, because adding -1e9 to all scores removes their digits in float32.
    """
    contract = graph.contract
    if contract.empty_rows:
        return contract
    inputs = dict(example(contract).inputs)
    for spec in contract.inputs:
        if spec.role == "attention" or is_padding(spec):
            inputs[spec.name] = all_open(spec, inputs[spec.name])
    masks = [spec for spec in contract.inputs if is_padding(spec)]
    trials = [{**inputs, spec.name: hide_first(spec, inputs[spec.name])} for spec in masks]
    single = [run_model(graph, trial) for trial in trials]
    with in_float64(graph.module.model):
        double = [run_model(graph, trial, Tensor.double) for trial in trials]
    opened = [
        spec.name
        for spec, ours, exact in zip(masks, single, double, strict=True)
        if not all(map(_near, ours, exact)) or _is_causal(graph, inputs, spec)
    ]
    return replace(contract, opened=tuple(opened))


def _is_causal(graph: Graph, inputs: Mapping[str, Array], mask: TensorSpec) -> bool:
    """Whether the model itself hides later positions on the axis of ``mask``. Its first position can then attend to
    itself only; if a mask hides that too, it can attend nowhere.
    """
    axis = length_axis(mask)
    changed = dict(inputs)
    for spec in graph.contract.inputs:
        if spec.role in ("ids", "values") and axis in spec.axes:
            other = disturb(spec, inputs[spec.name], np.random.default_rng(0))
            first = np.arange(axis.traced).reshape([-1] + [1] * (len(spec.axes) - 1 - spec.axes.index(axis))) == 0
            changed[spec.name] = np.where(first, inputs[spec.name], other)
    alike = [
        same(before.select(spec.axes.index(axis), 0), after.select(spec.axes.index(axis), 0))
        for spec, before, after in zip(
            graph.contract.outputs, run_model(graph, inputs), run_model(graph, changed), strict=True
        )
        if axis in spec.axes
    ]
    return bool(alike) and all(alike)


def _near(single: Tensor, double: Tensor) -> bool:
    error = (single - double).abs().max()
    return bool(error <= NEAR * double.abs().max())  # False for NaN


def check_outputs(contract: Contract, case: Case, outputs: Sequence[Any]) -> None:
    """Check that the outputs of a model match its contract.

    Raises:
        OptionError: if they do not.
    """
    where, specs = f"graph {contract.graph}", contract.outputs
    places = [(value.data_ptr(), value.shape) for value in outputs if isinstance(value, Tensor) and value.numel()]
    if len(set(places)) < len(places):
        raise OptionError(f"{where}: the model gives the same tensor twice", "return each tensor once")
    tensors = [value for value in outputs if isinstance(value, Tensor)]
    if len(tensors) != len(outputs) or len(outputs) != len(specs):
        kinds = ", ".join(type(value).__name__ for value in outputs)
        raise OptionError(f"{where}: the model gives {kinds}, the contract {len(specs)} outputs", "list all of them")
    sizes = sizes_of(contract, case)
    for spec, value in zip(specs, tensors, strict=True):
        expected = spec.shape(sizes)
        if tuple(value.shape) != expected:
            raise OptionError(
                f"{where}: {spec.name} is {list(value.shape)} for {_words(sizes)}, the contract says "
                f"{list(spec.labels)}, which is {list(expected)}",
                "correct the contract",
            )
        if str(value.dtype) != f"torch.{spec.dtype}":
            raise OptionError(f"{where}: {spec.name} is {value.dtype}, the contract says {spec.dtype}", "correct it")


def _words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


# --- weights ---------------------------------------------------------------------------------------------------------


class _TensorsRead(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the ids of all tensors that operations read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        self.read.update(id(value) for value in tensors if isinstance(value, Tensor))
        return func(*args, **(kwargs or {}))


def _weights_read(model: nn.Module, graph: Graph) -> frozenset[str]:
    """The names of the weights that ``graph`` reads; for tied weights only the name that it uses."""
    twin = untied(model)
    tensors = named_tensors(twin)
    module = type(graph.module)(twin)
    inputs = {name: torch.from_numpy(array) for name, array in example(graph.contract).inputs.items()}
    with torch.no_grad(), _TensorsRead() as seen:
        module(**inputs)
    return frozenset(name for name, tensor in tensors.items() if id(tensor) in seen.read)
