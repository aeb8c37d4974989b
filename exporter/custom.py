"""A model that is not ours, behind contracts of its user: its graphs are exported and proven like all others."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import transformer as torch_transformer
from torch.utils._python_dispatch import TorchDispatchMode

from .contract import Contract
from .contracts import CustomGraph
from .errors import OptionError, first_line
from .graph import Graph
from .graph_modules import GraphModule
from .plan import Case, example, make_plan, sizes_of
from .program import untied

FORWARD = "forward"


class Called(GraphModule):
    """A method or submodule of a model, called with the contract's inputs by name."""

    method: str

    def forward(self, **inputs: Tensor) -> Any:
        """What the method gives."""
        return called(self.model, self.method)(**inputs)

    def arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """As they are."""
        return dict(inputs)


def called(model: nn.Module, method: str) -> Any:
    """The method or submodule of that name; ``forward`` is the model itself, with its hooks."""
    return model if method == FORWARD else attrgetter(method)(model)


def custom_graphs(model: nn.Module, graphs: Sequence[CustomGraph]) -> dict[str, Graph]:
    """The graphs of ``model``, by name, after a look at whether it is what the contracts say.

    Args:
        model: in float32 and evaluation mode.
        graphs: what is to become files.

    Raises:
        OptionError: where a contract does not fit.
    """
    found = {}
    for item in graphs:
        _check_arguments(model, item)
        names = [spec.name for spec in item.contract.inputs]
        module = _with_signature(item.method, names)(model)
        graph = Graph(item.contract, module, scopes=())
        with plain_torch():
            _check_fit(graph)
            held = _held(model, graph)
        found[item.contract.graph] = Graph(item.contract, module, scopes=(), held=held)
    return found


@contextmanager
def plain_torch() -> Iterator[None]:
    """``torch.nn.Transformer`` as it is written down: no fused kernels, which cannot be exported, and no look whether a
    mask is causal, which cannot be traced. Masks are applied as they are given all the same.
    """
    fast, detect = torch.backends.mha.get_fastpath_enabled(), torch_transformer._detect_is_causal_mask

    def as_said(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return bool(is_causal)

    torch.backends.mha.set_fastpath_enabled(False)
    torch_transformer._detect_is_causal_mask = as_said
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch_transformer._detect_is_causal_mask = detect


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


def _check_fit(graph: Graph) -> None:
    """Run the model at the lengths of the export, and at the longest and shortest that are tried."""
    plan = [case for case in make_plan(graph.contract) if case.group == "shapes"]
    amount = [sum(sizes_of(graph.contract, case).values()) for case in plan]
    for case in (example(graph.contract), plan[int(np.argmax(amount))], plan[int(np.argmin(amount))]):
        inputs = {name: torch.from_numpy(array) for name, array in case.inputs.items()}
        outputs = run_model(graph, case, inputs)
        check_outputs(graph.contract, case, outputs)
        again = run_model(graph, case, inputs)
        same = [
            torch.allclose(one, two, rtol=0, atol=0, equal_nan=True) for one, two in zip(outputs, again, strict=True)
        ]
        if not all(same):
            raise OptionError(
                f"graph {graph.name}: the model gives another result each time",
                "is there dropout that goes on in evaluation mode, or something random?",
            )


def run_model(graph: Graph, case: Case, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a user's model; what it raises is the user's to mend.

    Raises:
        OptionError: where it fails.
    """
    try:
        with torch.inference_mode():
            return graph.compute(inputs)
    except Exception as error:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in inputs.items())
        floats = [tensor.dtype for tensor in inputs.values() if tensor.is_floating_point()]
        exact = " in float64" if torch.float64 in floats or torch.get_default_dtype() == torch.float64 else ""
        raise OptionError(
            f"graph {graph.name}: the model fails{exact} on {shapes}: {first_line(error)}",
            "does it make tensors of a fixed dtype, .float() say?"
            if exact
            else "mend the dimensions in the contract, or say with longest= what the model can take; -v shows it all",
        ) from error


def check_outputs(contract: Contract, case: Case, outputs: Sequence[Any]) -> None:
    """Check that a model gives what its contract says.

    Raises:
        OptionError: where it does not.
    """
    where, specs = f"graph {contract.graph}", contract.outputs
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
    tensors = {**dict(twin.named_parameters(remove_duplicate=False)), **dict(twin.named_buffers())}
    module = type(graph.module)(twin)
    inputs = {name: torch.from_numpy(array) for name, array in example(graph.contract).inputs.items()}
    with torch.no_grad(), _Seen() as seen:
        module(**inputs)
    state = model.state_dict()
    return frozenset(name for name, tensor in tensors.items() if name in state and id(tensor) in seen.read)
