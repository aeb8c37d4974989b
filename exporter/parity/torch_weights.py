"""Check 1 for TorchScript and ``torch.export`` files: every weight is in the file, bit for bit, with its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..cases.case import Array
from ..formats import pt2, torchscript
from ..formats.torch_files import PREFIX
from .weight_values import CONSTANT_LIMIT, compare_weights


def torchscript_problems(path: Path, weights: Mapping[str, Array]) -> list[str]:
    """Problems with the weights in a TorchScript file."""
    module = torchscript.load(path)
    state = module.state_dict()
    graph: Any = module.inlined_graph
    read = with_aliases({_name(node) for node in graph.findAllNodes("prim::GetAttr") if _is_read(node)}, state)
    problems = compare_weights(state_dict_names(state), {name.removeprefix(PREFIX) for name in read}, weights)
    if any(is_weight(node.output().toIValue()) for node in graph.findAllNodes("prim::Constant")):
        problems.append("the graph holds a constant of the size of a weight, but the model has no such weight")
    return problems


def _is_read(node: Any) -> bool:
    """Whether a node that gets an attribute gets a tensor, and other nodes use it."""
    return node.output().type().kind() == "TensorType" and len(node.output().uses()) > 0


def _name(node: Any) -> str:
    """The state-dict name of the tensor that a node gets: names of the modules on the way, and of the attribute."""
    names = []
    while node.kind() == "prim::GetAttr":
        names.append(node.s("name"))
        node = node.input().node()
    return ".".join(reversed(names))


def pt2_problems(path: Path, weights: Mapping[str, Array]) -> list[str]:
    """Problems with the weights in a ``torch.export`` file."""
    program = pt2.load(path)
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    state = program.state_dict
    read = with_aliases({names[node.name] for node in program.graph.nodes if node.name in names and node.users}, state)
    problems = compare_weights(state_dict_names(state), {name.removeprefix(PREFIX) for name in read}, weights)
    return problems + [
        f"{name.removeprefix(PREFIX)} is in the file, but the model has no such weight"
        for name, constant in program.constants.items()
        if name not in state and is_weight(constant)
    ]


def state_dict_names(state: Mapping[str, Tensor]) -> dict[str, Array]:
    """Weights as arrays, by their state-dict name in the model."""
    return {name.removeprefix(PREFIX): tensor.detach().numpy() for name, tensor in state.items()}


def with_aliases(read: set[str], state: Mapping[str, Tensor]) -> set[str]:
    """``read``, and all other names in ``state`` of the same tensors: a graph reads tied weights by one name only."""
    places = {state[name].data_ptr() for name in read if name in state}
    return read | {name for name, tensor in state.items() if tensor.data_ptr() in places}


def is_weight(constant: object) -> bool:
    """Whether a constant of a graph is so large that it should be a weight; see :data:`CONSTANT_LIMIT`."""
    if isinstance(constant, Tensor):
        return constant.is_floating_point() and constant.numel() > CONSTANT_LIMIT
    if isinstance(constant, Sequence) and not isinstance(constant, str):
        floats = len(constant) > CONSTANT_LIMIT and all(isinstance(item, float) for item in constant)
        return floats or any(is_weight(item) for item in constant)
    return False


PROBLEMS = {"torchscript": torchscript_problems, "pt2": pt2_problems}
