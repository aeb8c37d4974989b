"""A check that values from a file have the types that their dataclass declares. Imports no torch."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def fits(value: Any, hint: Any) -> bool:
    """Whether ``value`` and all values in it have the type ``hint``.

    ``hint`` is a class or a dataclass, or a union, ``tuple[…, ...]`` or ``dict`` of these. As in JSON, True is not a
    number, and an integer is accepted as a float.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return isinstance(value, hint) and all(  # type: ignore[arg-type]
            fits(getattr(value, item.name), hints[item.name]) for item in fields(hint)
        )
    if origin in (Union, UnionType):
        return any(fits(value, choice) for choice in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(part, arguments[0]) for part in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(key, arguments[0]) and fits(part, arguments[1]) for key, part in value.items()
        )
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, hint)
