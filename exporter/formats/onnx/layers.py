"""Stacks of layers that are alike: a model with one layer of each, and marks in a trace where it begins and ends.

All layers of a stack compute the same with other weights, so one trace serves for all of them. What is traced is the
model itself, with its own modules: the shallow twin shares them. Whether layers are alike is asked strictly, and what
is in doubt is traced layer by layer.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from ....models.cached import CachedLayer
from ....transformer.decoder import MyTransformerDecoder, MyTransformerDecoderLayer
from ....transformer.encoder import MyTransformerEncoder, MyTransformerEncoderLayer
from ...contracts.contract import Contract, TensorSpec
from ...graphs.graph import Graph

ENCODER, DECODER = 0, 1  # which stack a mark belongs to
KINDS = {MyTransformerEncoder: ENCODER, MyTransformerDecoder: DECODER}
LAYERS = {MyTransformerEncoderLayer: ENCODER, MyTransformerDecoderLayer: DECODER, CachedLayer: DECODER}
DOMAIN = "mytx"  # of the marks

_CACHE = re.compile(r"(.+_(?:key|value)_)(\d+)")
_STATE = {"_parameters", "_buffers", "_modules"}
_PLAIN = (bool, int, float, str, type(None))
# Classes whose forward is known to depend on nothing but their attributes.
_KNOWN = (f"{__name__.partition('.')[0]}.transformer.", f"{__name__.partition('.')[0]}.models.", "torch.nn.modules.")


@dataclass(frozen=True)
class Stack:
    """A stack of layers that are alike.

    Attributes:
        prefix: of the state-dict names of its layers, up to their number.
        count: how many there are, at least 1.
        kind: :data:`ENCODER` or :data:`DECODER`.
    """

    prefix: str
    count: int
    kind: int


def stacks_of(graph: Graph) -> tuple[Stack, ...] | None:
    """The stacks in ``graph``; None where its layers are not alike, or where anything else in the model is unknown."""
    model = graph.module.model
    if graph.contract.custom or graph.held or not _is_known(model):
        return None
    stacks = []
    for name, module in model.named_modules():
        prefix = f"{name}.layers." if name else "layers."
        if type(module) not in KINDS or not any(prefix.startswith(scope) for scope in graph.scopes or ("",)):
            continue
        layers = list(module.layers)
        if not layers:
            continue
        if list(module.layers._modules) != [str(number) for number in range(len(layers))]:
            return None  # the order of a Sequential's names is its own
        parts = [id(part) for layer in layers for part in layer.modules()]
        if len(set(parts)) < len(parts) or not all(_alike(layers[0], layer) for layer in layers[1:]):
            return None
        if LAYERS.get(type(layers[0])) != KINDS[type(module)]:
            return None
        stacks.append(Stack(prefix, len(layers), KINDS[type(module)]))
    return tuple(stacks)


def shallow(graph: Graph, stacks: tuple[Stack, ...]) -> Graph:
    """``graph`` with the first layer of each of ``stacks`` alone, on the same modules; ``graph`` stays as it is."""
    module = copy.copy(graph.module)
    module._modules = {"model": _cut(graph.module.model, {stack.prefix for stack in stacks}, "")}
    contract = graph.contract
    inputs, outputs = (tuple(spec for spec in specs if layer_of(spec) in (None, 0)) for specs in _both(contract))
    return replace(graph, contract=replace(contract, inputs=inputs, outputs=outputs), module=module)


def layer_of(spec: TensorSpec) -> int | None:
    """The decoder layer that a cache is of, by its name; None for what is no cache."""
    match = _CACHE.fullmatch(spec.name)
    return int(match[2]) if match else None


def of_layer(name: str, layer: int) -> str:
    """The name of the cache of another layer."""
    match = _CACHE.fullmatch(name)
    assert match is not None, name
    return f"{match[1]}{layer}"


@contextlib.contextmanager
def marking() -> Iterator[None]:
    """Where a layer is traced in here, a mark stands before what goes into it and behind what comes out."""

    def before(module: nn.Module, arguments: tuple[Any, ...]) -> Any:
        kind = LAYERS.get(type(module))
        return None if kind is None else (_layer_input(arguments[0], kind), *arguments[1:])

    def behind(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        kind = LAYERS.get(type(module))
        if kind is None:
            return None
        if isinstance(output, Tensor):
            return _layer_output(output, kind)
        return (_layer_output(output[0], kind), *output[1:])  # a cached layer gives keys and values, too

    # For every module: cached layers are made when they are traced.
    handles = [hooks.register_module_forward_pre_hook(before), hooks.register_module_forward_hook(behind)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.library.custom_op(f"{DOMAIN}::layer_input", mutates_args=())
def _layer_input(x: Tensor, kind: int) -> Tensor:
    return x.clone()


@torch.library.custom_op(f"{DOMAIN}::layer_output", mutates_args=())
def _layer_output(x: Tensor, kind: int) -> Tensor:
    return x.clone()


@_layer_input.register_fake
def _(x: Tensor, kind: int) -> Tensor:
    return torch.empty_like(x)


@_layer_output.register_fake
def _(x: Tensor, kind: int) -> Tensor:
    return torch.empty_like(x)


# --- what is alike ---------------------------------------------------------------------------------------------------


def _is_known(model: nn.Module) -> bool:
    """Whether all of ``model`` is made of classes that we know, and nothing was hung on them."""
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return False
    return all(_is_plain(module) for module in model.modules())


def _is_plain(module: nn.Module) -> bool:
    if not type(module).__module__.startswith(_KNOWN):
        return False
    own = {name: value for name, value in vars(module).items() if name not in _STATE}
    return not any(callable(value) or (name.endswith("_hooks") and value) for name, value in own.items())


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules compute the same but for the values of their weights."""
    if type(one) is not type(other) or vars(one).keys() != vars(other).keys():
        return False
    for name, value in vars(one).items():
        if name in _STATE:
            continue
        if not _equal(value, vars(other)[name]):
            return False
    for state in ("_parameters", "_buffers"):
        tensors, others = vars(one)[state], vars(other)[state]
        if list(tensors) != list(others) or not all(map(_same_form, tensors.values(), others.values())):
            return False
    children, others = one._modules, other._modules
    return list(children) == list(others) and all(
        a is b is None or (a is not None and b is not None and _alike(a, b))
        for a, b in zip(children.values(), others.values(), strict=True)
    )


def _equal(one: object, other: object) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, (dict, set)):  # hooks, and names of buffers that no state dict has: there must be none
        return not one and not other
    return isinstance(one, _PLAIN) and one == other


def _same_form(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return (
        type(one) is type(other)
        and type(one) in (nn.Parameter, Tensor)
        and one.shape == other.shape
        and one.dtype == other.dtype
        and one.layout == other.layout
        and one.device == other.device
        and one.stride() == other.stride()
    )


def _cut(module: nn.Module, prefixes: set[str], name: str) -> nn.Module:
    if name in prefixes:
        first = copy.copy(module)
        first._modules = {"0": module._modules["0"]}
        return first
    if not any(prefix.startswith(name) for prefix in prefixes):
        return module
    twin = copy.copy(module)
    twin._modules = {
        key: child if child is None else _cut(child, prefixes, f"{name}{key}.")
        for key, child in module._modules.items()
    }
    if type(module) in KINDS:
        twin.num_layers = 1  # type: ignore[assignment]
    return twin


def _both(contract: Contract) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    return contract.inputs, contract.outputs
