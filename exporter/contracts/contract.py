"""Contracts: the names, dtypes, dimensions and meaning of a graph's tensors. Exporters, plan and reports read them.

Imports no torch: bundles are opened and run without it, and they contain contracts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

# In export order: a graph can be built from the files of those before it.
GRAPHS = ("encoder", "decoder", "full", "step", "prefill", "greedy", "generate")
SEARCHES = ("greedy", "generate")  # graphs that search and return ids
CACHED = ("step", "prefill", *SEARCHES)  # graphs with a KV cache; they fuse modules of the model
MADE_OF = {
    "full": ("encoder", "decoder"),
    "prefill": ("encoder", "step"),
    "greedy": ("prefill", "step"),
    "generate": ("prefill", "step"),
}
CUSTOM_KIND = "custom"  # ``kind`` in the manifest, for a user's own model
CUSTOM_LAYOUT = "as the model has it"  # ``layout`` of its contracts

# Roles of padding masks.
PADDING = ("padding", "keep")

PADDING_MEANING = {
    "bool": "True = padding, hidden from attention; False = a real position",
    "float32": "added to the attention scores of its key: 0 = a real position, -inf = padding",
}
ATTENTION_MEANING = {
    "bool": "True = this query may not attend to this key; False = it may",
    "float32": "added to the attention scores: 0 = may attend, -inf = may not",
}


@dataclass(frozen=True)
class Axis:
    """A dimension that varies.

    Attributes:
        name: dimensions with the same name have the same length.
        minimum: the shortest length that the graph must accept.
        traced: the length at export: at least 2, and different for each axis, or torch.export makes it a constant.
        maximum: the longest length that the graph accepts; None without a limit.
        times: factor on the length: the number of heads in a mask ``[heads * batch, T, S]``.
        plus: added to the length: 1 for a present, which is the past and one new position.
    """

    name: str
    minimum: int = 1
    traced: int = 3
    maximum: int | None = None
    times: int = 1
    plus: int = 0

    @property
    def label(self) -> str:
        """The name of the dimension in a file: ``batch``, ``8*batch``, ``past + 1``."""
        name = self.name if self.times == 1 else f"{self.times}*{self.name}"
        return f"{name} + {self.plus}" if self.plus else name

    def length(self, size: int) -> int:
        """The length of the dimension if the axis has ``size``: ``times * size + plus``."""
        return size * self.times + self.plus


@dataclass(frozen=True)
class TensorSpec:
    """An input or output.

    Attributes:
        name: the tensor's name in the graph.
        dtype: as numpy names it.
        axes: an :class:`Axis` for each dimension that varies, a number for each fixed one.
        meaning: a description for people; for a mask its polarity.
        role: the kind of values: ``values``, ``ids``, ``padding``, ``keep``, ``attention`` or ``number``. ``keep`` is a
            padding mask with the opposite polarity: 1 = a real position.
        limit: ids are below this. For a number: larger values have the same effect as this one; 0 without a limit.
        optional: whether callers may leave it out.
        hidden_by: names of padding masks. Where all of them say padding, the values here change no other position.
        future: how later positions of this input are hidden from the output. The name of an attention mask: if that
            mask is causal, position i of the output depends on positions 0 to i only. ``inside``: the graph itself
            is causal. Empty: they are not hidden.
        default: the value of a number that callers may leave out.
        pad: the id from which the model computes a padding mask itself; None if it computes none.
    """

    name: str
    dtype: str
    axes: tuple[Axis | int, ...]
    meaning: str = ""
    role: str = "values"
    limit: int = 0
    optional: bool = False
    hidden_by: tuple[str, ...] = ()
    future: str = ""
    default: float | None = None
    pad: int | None = None

    @property
    def labels(self) -> tuple[str | int, ...]:
        """The dimensions as a file names them: names and numbers."""
        return tuple(axis.label if isinstance(axis, Axis) else axis for axis in self.axes)

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """The shape, with ``sizes`` as the length of each axis by name."""
        return tuple(axis.length(sizes[axis.name]) if isinstance(axis, Axis) else axis for axis in self.axes)


@dataclass(frozen=True)
class Contract:
    """The inputs and outputs of a graph.

    Attributes:
        graph: the graph's name: one of :data:`GRAPHS`, or any name for a user's own model.
        inputs, outputs: the tensors in order.
        layout: ``batch first``, ``sequence first`` or :data:`CUSTOM_LAYOUT`.
        ids: special ids by name; empty for a graph without ids.
        empty_rows: whether the model defines the result of a query that may attend nowhere (an empty row of the mask).
            PyTorch's own attention gives NaN. If False, no case has an empty row.
        opened: inputs (padding masks, and ids with a padding id) whose first position no case hides, because the model
            combines them with a mask of its own and the two would hide everything. Empty if ``empty_rows``.
    """

    graph: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    layout: str
    ids: dict[str, int] = field(default_factory=dict)
    empty_rows: bool = True
    opened: tuple[str, ...] = ()

    @property
    def axes(self) -> dict[str, Axis]:
        """The axes of the inputs by name."""
        found: dict[str, Axis] = {}
        for spec in self.inputs:
            for axis in spec.axes:
                if isinstance(axis, Axis):
                    found.setdefault(axis.name, axis)
        return found

    @property
    def custom(self) -> bool:
        """Whether the graph is of a user's own model. Its name then tells nothing about what it computes."""
        return self.layout == CUSTOM_LAYOUT

    @property
    def composed(self) -> bool:
        """Whether the graph is encoder and decoder together: ``full`` of a model of :mod:`mytx.models`."""
        return self.graph == "full" and not self.custom

    @property
    def made_of(self) -> tuple[str, ...]:
        """The graphs that it consists of. Of a custom model nothing is known to be made of anything."""
        return () if self.custom else MADE_OF.get(self.graph, ())

    @property
    def searches(self) -> bool:
        """Whether the graph runs a whole search and returns ids."""
        return self.graph in SEARCHES and not self.custom

    def input(self, name: str) -> TensorSpec:
        """The input called ``name``."""
        return next(spec for spec in self.inputs if spec.name == name)

    def lifted(self) -> Contract:
        """The contract of the same graph in float64."""
        return replace(
            self, inputs=tuple(_lift(spec) for spec in self.inputs), outputs=tuple(_lift(spec) for spec in self.outputs)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; :meth:`from_dict` reads them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Contract:
        """The contract that :meth:`to_dict` wrote."""
        return cls(
            graph=values["graph"],
            inputs=tuple(_spec(item) for item in values["inputs"]),
            outputs=tuple(_spec(item) for item in values["outputs"]),
            layout=values["layout"],
            ids=dict(values["ids"]),
            empty_rows=values.get("empty_rows", True),
            opened=tuple(values.get("opened", ())),
        )


def _lift(spec: TensorSpec) -> TensorSpec:
    return replace(spec, dtype="float64") if spec.dtype == "float32" else spec


def _spec(values: dict[str, Any]) -> TensorSpec:
    axes = tuple(Axis(**axis) if isinstance(axis, dict) else int(axis) for axis in values["axes"])
    return TensorSpec(**{**values, "axes": axes, "hidden_by": tuple(values["hidden_by"])})


def length_axis(spec: TensorSpec) -> Axis:
    """The axis of positions: the first one that is not the batch."""
    return next(axis for axis in spec.axes if isinstance(axis, Axis) and axis.name != "batch")
