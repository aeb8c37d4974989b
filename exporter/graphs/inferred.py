"""Contracts that are inferred, for models whose ``encode``, ``decode`` and ``forward`` have arguments with usual names.

The name of an argument tells what it is. The layout, the size of the vocabulary, the longest inputs and the dimensions
of the output are found by running the model. The batch is the dimension whose entries do not depend on each other.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..contracts.contract import TensorSpec
from ..contracts.declare import CustomGraph, attention, graph, ids, padding, values
from ..errors import OptionError
from .running import plain_torch
from .user_code import FAILURES
from .user_model import FORWARD, method_of

METHODS = {"encoder": "encode", "decoder": "decode", "full": FORWARD}
# For each usual name the kind of the argument, and the axes of its positions: query and key for an attention mask.
NAMES = {
    "src": ("ids", "source"),
    "tgt": ("ids", "target"),
    "memory": ("memory", "source"),
    "src_mask": ("attention", "source", "source"),
    "tgt_mask": ("attention", "target", "target"),
    "memory_mask": ("attention", "target", "source"),
    "src_key_padding_mask": ("padding", "source"),
    "tgt_key_padding_mask": ("padding", "target"),
    "memory_key_padding_mask": ("padding", "source"),
}
ALIASES = {
    "source": "src", "src_ids": "src", "src_tokens": "src", "input_ids": "src",
    "trg": "tgt", "target": "tgt", "tgt_ids": "tgt", "tgt_tokens": "tgt", "decoder_input_ids": "tgt",
    "enc_out": "memory", "encoder_out": "memory", "encoder_output": "memory", "encoder_outputs": "memory",
    "encoder_hidden_states": "memory", "trg_mask": "tgt_mask",
    "src_padding_mask": "src_key_padding_mask", "source_padding_mask": "src_key_padding_mask",
    "tgt_padding_mask": "tgt_key_padding_mask", "trg_padding_mask": "tgt_key_padding_mask",
    "target_padding_mask": "tgt_key_padding_mask", "trg_key_padding_mask": "tgt_key_padding_mask",
    "memory_padding_mask": "memory_key_padding_mask",
}  # fmt: skip
WRITE_ONE = "write a contract, and give it with --contract"
USUAL = f"the usual names are {', '.join(NAMES)}; otherwise {WRITE_ONE}"
LONGEST = 512  # the longest length in any plan; no longer one is promised
Sizes = Mapping[str, int]
# All lengths differ, so that a dimension of an output that has one of them in both runs is that axis.
FIRST: Sizes = {"batch": 2, "source": 7, "target": 5}
SECOND: Sizes = {"batch": 3, "source": 11, "target": 8}


@dataclass(frozen=True)
class InferredMethod:
    """A method whose arguments all have usual names.

    Attributes:
        method: the method's name.
        arguments: from the name of each argument to its name in :data:`NAMES`.
        batch_first: whether ids are ``[batch, length]``, not ``[length, batch]``.
    """

    method: str
    arguments: dict[str, str]
    batch_first: bool

    def axes(self, kind: Sequence[str]) -> list[str]:
        """The dimensions of an argument; ``kind`` is a value of :data:`NAMES`."""
        if kind[0] == "attention":
            return list(kind[1:])
        pair = ["batch", kind[1]]
        return pair if self.batch_first or kind[0] == "padding" else pair[::-1]


def infer_graphs(model: nn.Module) -> list[CustomGraph]:
    """The graphs of a model whose arguments have usual names, with inferred contracts.

    Raises:
        OptionError: if there is no such method, or a contract cannot be inferred.
    """
    present = {name: method for name, method in METHODS.items() if _has(model, method)}
    if not present:
        raise OptionError(f"{type(model).__name__} has no encode, decode or forward", WRITE_ONE)
    with plain_torch():
        first = {name: infer_method(model, method) for name, method in present.items() if name != "decoder"}
        encoder = first.get("encoder")
        width = _memory_width(model, encoder) if encoder else 0
        found = first | ({"decoder": infer_method(model, "decode", width)} if "decoder" in present else {})
        tables: dict[str, nn.Embedding] = {}
        # All methods before the first graph: a decoder may take source ids only for their padding, without embedding.
        for each in found.values():
            tables |= _embeddings(model, each, width)
        return [_graph(model, name, found[name], width, tables) for name in METHODS if name in found]


def infer_method(model: nn.Module, method: str, width: int = 0) -> InferredMethod:
    """The arguments of a method, and the layout of its ids.

    Args:
        model: a model in evaluation mode.
        method: ``encode``, ``decode`` or ``forward``.
        width: the last dimension of the memory, if the method takes one.

    Raises:
        OptionError: if an argument has no usual name, or if the method works with no layout of the ids.
    """
    arguments = arguments_of(model, method)
    problems = []
    for batch_first in (False, True):
        found = InferredMethod(method, arguments, batch_first)
        try:
            if _independent(model, found, width):
                return found
            problems.append("sentences depend on each other")
        except FAILURES as error:
            problems.append(" ".join(str(error).split())[:200])
    raise OptionError(
        f"{method} of {type(model).__name__} works neither with [length, batch] ({problems[0]}) nor with "
        f"[batch, length] ({problems[1]})",
        WRITE_ONE,
    )


def example_inputs(found: InferredMethod, sizes: Sizes, width: int = 0) -> dict[str, Any]:
    """A tensor for each argument, by the argument's name: random ids, random memory, masks that hide nothing."""
    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, Any] = {}
    for name, usual in found.arguments.items():
        kind = NAMES[usual]
        shape = [sizes[axis] for axis in found.axes(kind)]
        if kind[0] == "ids":
            inputs[name] = torch.randint(2, shape, generator=generator)
        elif kind[0] == "memory":
            inputs[name] = torch.randn([*shape, width], generator=generator)
        else:
            inputs[name] = torch.zeros(shape, dtype=torch.bool)
    return inputs


# --- inferring -------------------------------------------------------------------------------------------------------


def _has(model: nn.Module, method: str) -> bool:
    if method != FORWARD:
        return callable(getattr(model, method, None))
    return type(model).forward is not nn.Module.forward


def arguments_of(model: nn.Module, method: str) -> dict[str, str]:
    """From the name of each argument of a method to its name in :data:`NAMES`; others with a default are left out.

    Raises:
        OptionError: if an argument without a default has no usual name, or an argument that is needed is missing.
    """
    target = method_of(model, method)
    parameters = inspect.signature(target.forward if isinstance(target, nn.Module) else target).parameters
    found = {}
    for name, parameter in parameters.items():
        usual = ALIASES.get(name, name)
        if usual in NAMES:
            found[name] = usual
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise OptionError(f"{name}, which {method} of {type(model).__name__} takes, is no usual name", USUAL)
    wanted = {"encode": {"src"}, "decode": {"tgt", "memory"}, FORWARD: {"src"}}[method]
    if missing := sorted(wanted - set(found.values())):
        raise OptionError(f"{method} of {type(model).__name__} takes no {missing[0]}", USUAL)
    return found


def _run(model: nn.Module, found: InferredMethod, inputs: Mapping[str, Any]) -> Tensor:
    with torch.inference_mode():
        output = method_of(model, found.method)(**inputs)
    if not isinstance(output, Tensor):
        raise OptionError(f"{found.method} gives a {type(output).__name__}, not one tensor", WRITE_ONE)
    return output


def _independent(model: nn.Module, found: InferredMethod, width: int) -> bool:
    """Whether other ids in the first sentence change its output, but not the output of the second."""
    inputs = example_inputs(found, FIRST, width)
    before = _run(model, found, inputs)
    axis = next((index for index, size in enumerate(before.shape) if size == FIRST["batch"]), None)
    if axis is None:
        return False
    for name, usual in found.arguments.items():
        if NAMES[usual][0] == "ids":
            (inputs[name] if found.batch_first else inputs[name].T)[0] ^= 1
    after = _run(model, found, inputs)
    kept = torch.allclose(before.select(axis, 1), after.select(axis, 1), rtol=1e-4, atol=1e-5)
    return kept and not torch.equal(before.select(axis, 0), after.select(axis, 0))


def _memory_width(model: nn.Module, encoder: InferredMethod) -> int:
    return _run(model, encoder, example_inputs(encoder, FIRST)).shape[-1]


def _graph(
    model: nn.Module, name: str, found: InferredMethod, width: int, tables: Mapping[str, nn.Embedding]
) -> CustomGraph:
    unknown = [own for own, usual in found.arguments.items() if NAMES[usual][0] == "ids" and usual not in tables]
    if unknown:
        raise OptionError(f"{unknown[0]} of {found.method} goes into no torch.nn.Embedding", WRITE_ONE)
    longest = {side: most for side in ("source", "target") if (most := _longest(model, found, side, width))}
    inputs: list[TensorSpec] = []
    for argument, usual in found.arguments.items():
        kind = NAMES[usual]
        axes = found.axes(kind)
        if kind[0] == "ids":
            table = tables[usual]
            inputs.append(ids(argument, axes, table.num_embeddings, pad=table.padding_idx))
        elif kind[0] == "memory":
            inputs.append(values(argument, [*axes, width]))
        else:
            inputs.append((padding if kind[0] == "padding" else attention)(argument, axes))
    shapes = [_run(model, found, example_inputs(found, sizes, width)).shape for sizes in (FIRST, SECOND)]
    dims = [_dimension(first, second) for first, second in zip(*shapes, strict=True)]
    rows = {tables[usual].num_embeddings for usual in found.arguments.values() if usual in tables}
    title = "memory" if name == "encoder" else "logits" if dims[-1] in rows else "output"
    return graph(name, found.method, inputs, [values(title, dims)], longest=longest)


def _dimension(first: int, second: int) -> str | int:
    """The axis whose lengths a dimension had in the two runs, or its length if it is no axis."""
    for name in FIRST:
        if (first, second) == (FIRST[name], SECOND[name]):
            return name
    return first


def _embeddings(model: nn.Module, found: InferredMethod, width: int) -> dict[str, nn.Embedding]:
    """The embedding that ids go into, by the usual name of the ids."""
    inputs = example_inputs(found, FIRST, width)
    tensors = {usual: inputs[name] for name, usual in found.arguments.items() if NAMES[usual][0] == "ids"}
    tables: dict[str, nn.Embedding] = {}

    def look(module: nn.Embedding, args: tuple[Any, ...], output: Any) -> None:
        for usual, value in tensors.items():
            if args and isinstance(args[0], Tensor) and args[0].data_ptr() == value.data_ptr():
                tables[usual] = module

    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    handles = [module.register_forward_hook(look) for module in embeddings]
    try:
        _run(model, found, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return tables


def _longest(model: nn.Module, found: InferredMethod, side: str, width: int) -> int | None:
    """The longest ``source`` or ``target`` that the model takes, up to :data:`LONGEST`; None without such an axis."""
    if side not in {axis for usual in found.arguments.values() for axis in NAMES[usual][1:]}:
        return None

    def works(length: int) -> bool:
        try:
            _run(model, found, example_inputs(found, {**FIRST, "batch": 1, side: length}, width))
        except Exception:
            return False
        return True

    low, high = FIRST[side], LONGEST + 1  # low works, high does not
    if works(LONGEST):
        return LONGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low
