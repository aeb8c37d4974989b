"""The nodes of an ONNX file by module of the model, read from the names of the nodes.

The exporter names a node after its module, such as ``decoder.layers.3.norm1/LayerNormalization_12``. The full graph is
composed of two halves; its names begin with ``encoder/`` or ``decoder/``. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx

# The half of a composed graph, and the module in it; the module is None if the name of the node tells none.
Scope = tuple[str, str | None]
_HALF = re.compile(r"(encoder|decoder)/")


@dataclass(frozen=True)
class Call:
    """The nodes of one call of a module.

    Attributes:
        module: state-dict name of the module.
        number: number of the call, from 0.
        own: numbers of the module's own nodes, without those of its submodules.
        inside: numbers of all nodes of the module and its submodules.
    """

    module: str
    number: int
    own: tuple[int, ...]
    inside: frozenset[int]


class FileScopes:
    """The nodes of a graph by module.

    Attributes:
        nodes: all nodes of the graph.
        scopes: the scope of each node.
        producer: number of the node that computes a value, by the value's name.
        readers: numbers of the nodes that read a value, by the value's name.
        calls: calls of modules, in the order of their first nodes.

    Args:
        graph: graph of the file.
        modules: names of the model's modules.
    """

    def __init__(self, graph: onnx.GraphProto, modules: Collection[str]) -> None:
        self.nodes = list(graph.node)
        composed = any(_HALF.match(node.name) and node.name.count("/") > 1 for node in self.nodes)
        self.scopes = [_scope(node.name, composed, modules) for node in self.nodes]
        self.producer = {name: number for number, node in enumerate(self.nodes) for name in node.output}
        self.readers: dict[str, list[int]] = {}
        for number, node in enumerate(self.nodes):
            for name in node.input:
                self.readers.setdefault(name, []).append(number)
        self._outputs = {value.name for value in graph.output}
        self.calls = list(self._calls())

    def external(self, call: Call, varying: Collection[str]) -> list[str]:
        """The values in ``varying`` (those that depend on the inputs) that the call's own nodes read from outside."""
        names = dict.fromkeys(name for number in call.own for name in self.nodes[number].input)
        return [name for name in names if name in varying and self.producer.get(name) not in call.inside]

    def leaving(self, call: Call, varying: Collection[str]) -> list[str]:
        """The values in ``varying`` that the call's own nodes compute and that are read outside the call."""
        names = [name for number in call.own for name in self.nodes[number].output if name in varying]
        return [
            name
            for name in names
            if name in self._outputs or any(reader not in call.inside for reader in self.readers.get(name, []))
        ]

    def module_of(self, numbers: Collection[int], otherwise: str) -> str:
        """The module of the last of these nodes that has one; ``otherwise`` if none has."""
        known = [scope for number in sorted(numbers) if (scope := self.scopes[number][1]) is not None]
        return known[-1] if known else otherwise

    def describe(self, number: int) -> str:
        """The name and type of a node, for messages."""
        node = self.nodes[number]
        return f"{node.name or node.output[0]} ({node.op_type})"

    def _calls(self) -> Iterator[Call]:
        """The calls of modules. A module that is in both halves of a composed graph is called once in each."""
        own: dict[tuple[str, str], list[int]] = {}
        inside: dict[tuple[str, str], set[int]] = {}
        for number, (half, module) in enumerate(self.scopes):
            if module:
                own.setdefault((module, half), []).append(number)
                parts = module.split(".")
                for depth in range(1, len(parts) + 1):
                    inside.setdefault((".".join(parts[:depth]), half), set()).add(number)
        seen: dict[str, int] = {}
        for (module, half), numbers in sorted(own.items(), key=lambda item: item[1][0]):
            seen[module] = seen.get(module, -1) + 1
            yield Call(module, seen[module], tuple(numbers), frozenset(inside[module, half]))


def shared_parent(modules: Collection[str]) -> str:
    """The name of the innermost module that contains all of these; "" is the model."""
    paths = [module.split(".")[:-1] for module in modules]
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _scope(name: str, composed: bool, modules: Collection[str]) -> Scope:
    half, rest = "", name
    if composed and (match := _HALF.match(name)):
        half, rest = match[1], name[match.end() :]
    module, slash, _ = rest.rpartition("/")
    if not slash:
        return half, "" if re.search(r"_\d+$", rest) else None  # the exporter names code of the model itself so
    return half, module if module in modules else None
