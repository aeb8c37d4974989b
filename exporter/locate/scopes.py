"""Which nodes and values of an ONNX file are which modules of the model, by the names of the nodes.

A node is called ``decoder.layers.3.norm1/LayerNormalization_12`` after the module that it comes from; in the full
graph, composed of two halves, ``encoder/`` or ``decoder/`` stands in front. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx

# Which half of a composed graph, and the module in it; None where the name tells none.
Scope = tuple[str, str | None]
_HALF = re.compile(r"(encoder|decoder)/")


@dataclass(frozen=True)
class Call:
    """The nodes of one call of a module.

    Attributes:
        module: its state-dict name.
        number: which call of it.
        own: the numbers of the nodes that it has itself, without those of the modules in it.
        inside: the numbers of all its nodes.
    """

    module: str
    number: int
    own: tuple[int, ...]
    inside: frozenset[int]


class FileScopes:
    """The nodes of a graph by module.

    Attributes:
        nodes: of the graph.
        scopes: of each node.
        producer: which node makes a value.
        readers: which nodes read a value.
        calls: the calls of modules, in the order of their first nodes.

    Args:
        graph: of the file.
        modules: the names that the model has.
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
        """The values that depend on the inputs and come to the call's own nodes from outside."""
        names = dict.fromkeys(name for number in call.own for name in self.nodes[number].input)
        return [name for name in names if name in varying and self.producer.get(name) not in call.inside]

    def leaving(self, call: Call, varying: Collection[str]) -> list[str]:
        """The values that depend on the inputs and go from the call's own nodes to the outside."""
        names = [name for number in call.own for name in self.nodes[number].output if name in varying]
        return [
            name
            for name in names
            if name in self._outputs or any(reader not in call.inside for reader in self.readers.get(name, []))
        ]

    def module_of(self, numbers: Collection[int], otherwise: str) -> str:
        """The module of the last of the nodes that have one."""
        known = [scope for number in sorted(numbers) if (scope := self.scopes[number][1]) is not None]
        return known[-1] if known else otherwise

    def describe(self, number: int) -> str:
        """A node's name and type, for people."""
        node = self.nodes[number]
        return f"{node.name or node.output[0]} ({node.op_type})"

    def _calls(self) -> Iterator[Call]:
        """A module that both halves of a composed graph have is called once in each."""
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
    """The innermost module that all of these are in; "" for the model."""
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
        return half, "" if re.search(r"_\d+$", rest) else None  # the exporter's own name for code of the model itself
    return half, module if module in modules else None
