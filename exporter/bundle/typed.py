"""Whether a value that was read from a file is what its dataclass says. No torch here."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def fits(value: Any, hint: Any) -> bool:
    """Whether ``value``, and all in it, is of the type ``hint``: a class, a dataclass, or a union, ``tuple[…, ...]`` or
    ``dict`` of those. As in JSON, True is no number, and a whole number is a float.
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
