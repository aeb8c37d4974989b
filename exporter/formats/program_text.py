"""The check of the text of a ``torch.export`` program, before PyTorch turns it into Python. Imports no torch.

``torch.export.load`` looks up operators by name in all of ``torch``, evaluates expressions of sizes, and imports the
types that the structure of the inputs names; the loaded module compiles its guards and the names of its nodes. In a
trial, code that was planted in each of these places ran. So each place has a narrow grammar here: what PyTorch writes
for a model.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

# Names of nodes, tensors, modules, devices; versions such as 2.13.0+cpu; -Infinity.
NAME = re.compile(r"[\w.+-]*", re.ASCII)
_PART = r"(_?[A-Za-z]\w*|__(and|or|xor|lshift|rshift)__)"
OPERATOR = re.compile(
    rf"torch\.ops\.aten\.(?!(from_file|save)\.){_PART}\._?[A-Za-z]\w*"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem)"
    r"|math\.(ceil|floor|trunc)|torch\.sym_(float|int|ite|max|min|not|sum)",
    re.ASCII,
)
# Text for people and tools; nothing runs it as code.
FREE_METADATA = {"stack_trace", "nn_module_stack", "torch_fn"}
FREE = {"as_string", "as_strings"}
OPAQUE = {"custom_obj", "as_custom_obj"}
STRUCTURES = {None, "builtins.tuple", "builtins.list", "builtins.dict"}

# Functions of sizes in sympy and torch.
FUNCTIONS = re.compile(
    r"Symbol|Integer|Rational|Float|Add|Mul|Pow|Mod|PythonMod|FloorDiv|CleanDiv|CeilToInt|FloorToInt|TruncToInt|Abs|Max"
    r"|Min|Equality|Unequality|StrictLessThan|LessThan|StrictGreaterThan|GreaterThan|And|Or|Not"
)
_ALLOWED = (
    ast.Expression,
    ast.Call,
    ast.keyword,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.Subscript,
    ast.Attribute,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)


def problem_of_program(program: Any) -> str:
    """What is dangerous in a parsed ``models/model.json``, in words; empty if nothing is."""
    for path, text in _strings(program):
        problem = _problem(path, text)
        if problem:
            return problem
    return ""


def is_expression(text: str) -> bool:
    """Whether ``text`` is arithmetic on sizes or a comparison of sizes, as in ``Mul(Integer(4), Symbol('s25'))`` or
    ``L['src'].size()[0] == 2*s7``.
    """
    try:
        tree = ast.parse(text, mode="eval")
        return all(_is_allowed(node) for node in ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        # L is the table of inputs in guards; s7 and the like are symbols of sizes.
        return bool(FUNCTIONS.fullmatch(node.id) or re.fullmatch(r"L|[a-z]+\d+", node.id, re.ASCII))
    if isinstance(node, ast.Constant):
        text = isinstance(node.value, str) and NAME.fullmatch(node.value)
        return bool(text) or isinstance(node.value, (int, float))
    if isinstance(node, ast.Attribute):
        return node.attr == "size"
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return not node.args and not node.keywords
        return isinstance(node.func, ast.Name) and bool(FUNCTIONS.fullmatch(node.func.id))
    return isinstance(node, _ALLOWED)


def _strings(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """All strings in ``value``, each with the keys on the way to it; for a key the last of these is ``<key>``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, "<key>"), key
            yield from _strings(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, path)
    elif isinstance(value, str):
        yield path, value


def _problem(path: tuple[str, ...], text: str) -> str:
    """What is wrong with one string, in words; empty if nothing is."""
    last, before = path[-1] if path else "", path[-2] if len(path) > 1 else ""
    if last == "<key>" and text in OPAQUE:
        return "holds an object that is not a tensor"
    if before == "metadata" and last != "<key>":
        return "" if last in FREE_METADATA else f"has metadata that is not known: {last[:60]!r}"
    if last in FREE:
        return ""
    if last in ("target", "as_operator"):
        return "" if OPERATOR.fullmatch(text) else f"asks to run {text[:80]!r}"
    if last in ("expr_str", "guards_code") or (before == "range_constraints" and last == "<key>"):
        return "" if is_expression(text) else f"has an expression that is more than arithmetic: {text[:80]!r}"
    if last in ("in_spec", "out_spec"):
        return "" if _is_structure(text) else f"has inputs in a structure that is not known: {text[:80]!r}"
    return "" if NAME.fullmatch(text) else f"has a name that could be taken for code: {text[:80]!r}"


def _is_structure(text: str) -> bool:
    """Whether ``text`` describes tensors in tuples, lists and dicts, and no other types."""
    try:
        _, root = json.loads(text)
        return _is_node(root)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _is_node(node: Any) -> bool:
    names = None if node["context"] is None else json.loads(node["context"])
    if names is not None and not (
        isinstance(names, list) and all(isinstance(name, str) and NAME.fullmatch(name) for name in names)
    ):
        return False
    return node["type"] in STRUCTURES and all(_is_node(child) for child in node["children_spec"])
