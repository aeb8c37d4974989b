"""A model that is not ours, behind contracts of its user: its graphs are exported and proven like all others."""

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
NEAR = 1e-3  # of the largest value: float32 and float64 give the same result, roundings apart


class Called(GraphModule):
    """A method or submodule of a model, called with the contract's inputs by name."""

    method: str

    def forward(self, **inputs: Tensor) -> Any:
        """What the method gives."""
        return tensors_of(called(self.model, self.method)(**inputs))

    def arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """As they are."""
        return dict(inputs)


def tensors_of(output: Any) -> Any:
    """What a model gives, if it can be what a graph gives: a tensor or several in order."""
    if isinstance(output, Mapping):
        raise TypeError(f"it gives a {type(output).__name__} with {', '.join(map(str, output))}, not tensors")
    if not isinstance(output, (Tensor, tuple, list)):
        raise TypeError(f"it gives a {type(output).__name__}, not tensors")
    return output


def called(model: nn.Module, method: str) -> Any:
    """The method or submodule of that name; ``forward`` is the model itself, with its hooks."""
    return model if method == FORWARD else attrgetter(method)(model)


def custom_graphs(model: nn.Module, graphs: Sequence[CustomGraph]) -> dict[str, Graph]:
    """The graphs of ``model``, by name, after a look at whether it is what the contracts say.

    Args:
        model: in float32. Its modes and buffers are as before afterwards.
        graphs: what is to become files.

    Raises:
        OptionError: where a contract does not fit, or the model cannot be exported.
    """
    check_float32(model)
    names = [item.contract.graph for item in graphs]
    if strange := [name for name in names if not NAME.fullmatch(name)]:
        raise OptionError(f"{strange[0]!r} is no name for a graph", "make it with mytx.exporter.contracts.graph")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise OptionError(f"two graphs are called {twice[0]}", "each needs a name of its own")
    if not names:
        raise OptionError("there is no graph to export", "list one at least")
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
                    f"graph {graph.name}: running the model changes its {name}", "what keeps a state cannot be exported"
                )
            graph = replace(graph, held=_held(model, graph))
            found[graph.name] = replace(graph, contract=_with_opened(graph))
    return found


def _with_signature(method: str, names: Sequence[str]) -> type[Called]:
    """A class whose ``forward`` says what it takes: torch.export goes by that."""

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
        target = called(model, item.method)
    except AttributeError as error:
        raise OptionError(f"{where}: {name} has no {item.method}", "name a method or a submodule") from error
    except Exception as error:  # of a property
        raise OptionError(f"{where}: {item.method} of {name} fails: {first_line(error)}", "mend it") from error
    function = target.forward if isinstance(target, nn.Module) else target
    if not callable(function):
        raise OptionError(f"{where}: {item.method} of {name} cannot be called", "name a method or a submodule")
    signature = inspect.signature(function)
    try:
        signature.bind(**{spec.name: None for spec in item.contract.inputs})
    except TypeError as error:
        raise OptionError(
            f"{where}: {item.method} of {name} takes {', '.join(signature.parameters) or 'nothing'}: {error}",
            "give the inputs the names of its arguments, and those without a default all",
        ) from error


def _check_names(model: nn.Module, contract: Contract) -> None:
    """In a file, weights and outputs are of one kind."""
    weights = named_tensors(model)
    if taken := [spec.name for spec in (*contract.inputs, *contract.outputs) if spec.name in weights]:
        raise OptionError(f"graph {contract.graph}: a weight of the model is called {taken[0]}, too", "choose another")


def _check_fit(graph: Graph) -> None:
    """Run the model at the lengths of the export, and at the longest and shortest that are tried."""
    plan = [case for case in make_plan(graph.contract) if case.group == "shapes"]
    amount = [sum(sizes_of(graph.contract, case).values()) for case in plan]
    for case in (example(graph.contract), plan[int(np.argmax(amount))], plan[int(np.argmin(amount))]):
        outputs = run_model(graph, case.inputs)
        check_outputs(graph.contract, case, outputs)
        if not all(same(*pair) for pair in zip(outputs, run_model(graph, case.inputs), strict=True)):
            raise OptionError(
                f"graph {graph.name}: the model gives another result each time",
                "is there dropout that goes on in evaluation mode, something random, or a state?",
            )


def _with_opened(graph: Graph) -> Contract:
    """The contract, with the masks whose first position the model cannot do without: those are tried in float32 and in
    float64, as a mask of -1e9 hides nothing for one of them and gives NaN for neither.
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
    """Whether the model hides the future on the dimension of ``mask`` by itself: then its first position sees itself
    alone, and hidden it sees nothing.
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
    return bool(error <= NEAR * double.abs().max())  # so written, NaN is not


def check_outputs(contract: Contract, case: Case, outputs: Sequence[Any]) -> None:
    """Check that a model gives what its contract says.

    Raises:
        OptionError: where it does not.
    """
    where, specs = f"graph {contract.graph}", contract.outputs
    places = [(value.data_ptr(), value.shape) for value in outputs if isinstance(value, Tensor) and value.numel()]
    if len(set(places)) < len(places):
        raise OptionError(f"{where}: the model gives the same tensor twice", "let it give each once")
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
                "mend the contract",
            )
        if str(value.dtype) != f"torch.{spec.dtype}":
            raise OptionError(f"{where}: {spec.name} is {value.dtype}, the contract says {spec.dtype}", "mend it")


def _words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


# --- weights ---------------------------------------------------------------------------------------------------------


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Which tensors operations read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        self.read.update(id(value) for value in tensors if isinstance(value, Tensor))
        return func(*args, **(kwargs or {}))


def _held(model: nn.Module, graph: Graph) -> frozenset[str]:
    """The names of the weights that ``graph`` reads, of tied ones those by which it does."""
    twin = untied(model)
    tensors = named_tensors(twin)
    module = type(graph.module)(twin)
    inputs = {name: torch.from_numpy(array) for name, array in example(graph.contract).inputs.items()}
    with torch.no_grad(), _Seen() as seen:
        module(**inputs)
    return frozenset(name for name, tensor in tensors.items() if id(tensor) in seen.read)
