"""A planted fault: what is wrong, where, and which checks of the verifier must say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from subject import Subject


@dataclass(frozen=True)
class Fault:
    """An entry of the catalogue.

    Attributes:
        name: what is wrong, in words; unique.
        kind: ``weights``, ``masks``, ``positions``, ``epsilon``, ``activation``, ``softmax``, ``values``, ``NaN``,
            ``shapes``, ``dtypes``, ``names``, ``files``, ``rewrites``, ``tracing``, ``runtime``, ``model``, ``plan``,
            ``steps``, ``searches``, ``layers`` or ``quantisation``.
        plant: changes the subject that it is given.
        checks: the checks that find it, in all reports together: exactly these.
        graph, model: where it is planted; the model is one of ``exported_models.EVERY_KIND``.
        words: what one of the findings must say.
        place: the module that is at fault, where there is one; the report or ``locate`` must name it.
        small: it moves the float64 reference by no more than 10 noises in any case, or is in no number at all.
        precision: of the file.
        others: whether it is put to other tools' rules too, which have no plan and no reference of their own.
    """

    name: str
    kind: str
    plant: Callable[[Subject], None]
    checks: frozenset[str]
    graph: str = "decoder"
    model: str = "translation"
    words: str = ""
    place: str | None = None
    small: bool = False
    precision: str = "fp32"
    others: bool = True


def found_by(*checks: str) -> frozenset[str]:
    return frozenset(checks)


def quantised_fault(
    precision: str, name: str, plant: Callable[[Subject], None], checks: frozenset[str], **more: Any
) -> Fault:
    """A fault in files of a precision, which other tools' rules are not tried on."""
    return Fault(name, "quantisation", plant, checks, precision=precision, others=False, **more)
