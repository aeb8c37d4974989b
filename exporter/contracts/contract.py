"""What a graph is: names, dtypes, dimensions, meaning. Declared once; exporters, plan, verifier and reports read it.

No torch here: whoever runs a bundle reads contracts too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

# In the order in which they are exported: each is made of those before it.
GRAPHS = ("encoder", "decoder", "full", "step", "prefill", "greedy", "generate")
SEARCHES = ("greedy", "generate")  # graphs that decide, and give ids
CACHED = ("step", "prefill", *SEARCHES)  # graphs with a cache, in which the model's modules are fused
CUSTOM_KIND = "custom"  # of a model that is not ours, in a manifest
CUSTOM = "as the model has it"  # the layout of a graph of a model that is not ours

# Roles of masks that hide positions of sentences.
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
        name: shared by all dimensions that must have the same length.
        minimum: the shortest length that is promised to work.
        traced: the length at export; at least 2 and no other axis's, or torch.export would bake it in.
        maximum: the longest length that works, where there is one.
        times: the dimension is this many times as long as the axis (heads, in a mask for each head).
        plus: and by this many longer (the past, with the new position).
    """

    name: str
    minimum: int = 1
    traced: int = 3
    maximum: int | None = None
    times: int = 1
    plus: int = 0

    @property
    def label(self) -> str:
        """The dimension's name in a file: ``batch``, ``8*batch``, ``past + 1``."""
        name = self.name if self.times == 1 else f"{self.times}*{self.name}"
        return f"{name} + {self.plus}" if self.plus else name

    def length(self, size: int) -> int:
        """The dimension's length where the axis has ``size``."""
        return size * self.times + self.plus


@dataclass(frozen=True)
class TensorSpec:
    """An input or output.

    Attributes:
        name: in the graph.
        dtype: numpy's name for it.
        axes: an :class:`Axis` for each dimension that varies, a number for each that does not.
        meaning: for people; a mask's polarity in words.
        role: ``values``, ``ids``, ``padding``, ``keep``, ``attention`` or ``number``: what to fill it with. ``keep``
            is padding upside down, 1 = a real position.
        limit: ids are below it; of a number the most that makes a difference, 0 if there is none.
        optional: callers may leave it out.
        hidden_by: the padding masks that hide it: where all of them say padding, what stands there changes nothing.
        future: what the mask of that name, if it is causal, hides: position i of the output depends on positions 0 to
            i of this input alone. Empty: it is not hidden; ``inside``: the graph is causal whatever it is given.
        default: of a number that callers may leave out.
        pad: of ids, the one that the model itself takes for padding; None where it looks at no id.
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
        """The dimensions as they stand in a file: names and numbers."""
        return tuple(axis.label if isinstance(axis, Axis) else axis for axis in self.axes)

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """The dimensions where each axis has its length in ``sizes``."""
        return tuple(axis.length(sizes[axis.name]) if isinstance(axis, Axis) else axis for axis in self.axes)


@dataclass(frozen=True)
class Contract:
    """What a graph takes and gives.

    Attributes:
        graph: one of :data:`GRAPHS`, or whatever its user calls it.
        inputs, outputs: in order.
        layout: ``batch first``, ``sequence first`` or :data:`CUSTOM`.
        ids: special ids by name, empty for a graph on float tensors.
        empty_rows: whether there is a right result for a query that may attend nowhere; PyTorch's own attention gives
            NaN. Without it the plan has none.
        opened: masks, and ids with a padding id, whose first position is never hidden then: the model combines them
            with a mask of its own.
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
        """Whether the graph is of a model that is not ours: its name alone says nothing about it."""
        return self.layout == CUSTOM

    @property
    def composed(self) -> bool:
        """Whether the graph is the decoder after the encoder: full, of one of our models."""
        return self.graph == "full" and not self.custom

    @property
    def searches(self) -> bool:
        """Whether the graph decides, and gives ids."""
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
        """As plain values for JSON; :meth:`from_dict` is the way back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Contract:
        """The way back from :meth:`to_dict`."""
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
    """The dimension of positions, of which an input hides some or has some."""
    return next(axis for axis in spec.axes if isinstance(axis, Axis) and axis.name != "batch")
