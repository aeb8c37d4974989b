"""The configuration of a model: architecture, vocabulary sizes, special ids, and the assumptions made for it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypedDict

from ..transformer import TransformerConfig

KINDS = ("transformer", "translation", "couplet", "classification")
POOLINGS = ("sum", "avg", "last", "upstream-sum", "upstream-avg", "upstream-last")


class Extras(TypedDict, total=False):
    """Arguments of all task models besides the sizes. The defaults, which are those of the original code, are in
    :class:`ModelConfig` and :class:`~mytx.transformer.TransformerConfig`.
    """

    activation: str
    norm_first: bool
    final_norm: bool
    layer_norm_eps: float
    bias: bool
    max_length: int
    embedding_scale: float | None
    pad_id: int
    bos_id: int
    eos_id: int


@dataclass(frozen=True)
class Assumption:
    """A setting that is not in the checkpoint: its value comes from an option, from a file or from the default.

    Attributes:
        name: name of the setting, as in the configuration: ``layer_norm_eps``.
        value: value that is used.
        source: origin of the value: ``default``, ``option`` or a file name.
    """

    name: str
    value: Any
    source: str = "default"

    def __str__(self) -> str:
        return f"{self.name}={self.value} ({self.source})"


@dataclass(frozen=True)
class ModelConfig:
    """The complete configuration of a task model.

    Attributes:
        kind: one of :data:`KINDS`; ``transformer`` is the bare stack on float tensors.
        transformer: architecture of the stack.
        src_vocab_size: number of rows of the source embedding.
        tgt_vocab_size: number of rows of the target embedding and of the output projection.
        max_length: number of positions.
        embedding_scale: factor on the embeddings; None means sqrt(d_model).
        pad_id, bos_id, eos_id: special ids.
        dim_classification, num_classification, pooling: only for a classification model.
        assumed: settings that are not in the checkpoint.

    Raises:
        ValueError: if the kind or the pooling is unknown, or a size or id does not fit.
    """

    kind: str
    transformer: TransformerConfig
    src_vocab_size: int = 0
    tgt_vocab_size: int = 0
    max_length: int = 5000
    embedding_scale: float | None = None
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    dim_classification: int = 0
    num_classification: int = 0
    pooling: str = "sum"
    assumed: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {self.pooling!r}")
        if self.kind == "transformer":
            return
        if self.src_vocab_size < 1:
            raise ValueError(f"src_vocab_size must be positive, got {self.src_vocab_size}")
        if self.max_length < 1:
            raise ValueError(f"max_length must be positive, got {self.max_length}")
        if self.embedding_scale is not None and not math.isfinite(self.embedding_scale):
            raise ValueError(f"embedding_scale must be finite, got {self.embedding_scale}")
        if not 0 <= self.pad_id < self.src_vocab_size:
            raise ValueError(f"pad_id ({self.pad_id}) is outside the source vocabulary of {self.src_vocab_size}")
        if self.kind == "classification":
            for name in ("dim_classification", "num_classification"):
                if getattr(self, name) < 1:
                    raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
            return
        for name in ("pad_id", "bos_id", "eos_id"):
            if not 0 <= getattr(self, name) < self.tgt_vocab_size:
                raise ValueError(
                    f"{name} ({getattr(self, name)}) is outside the target vocabulary of {self.tgt_vocab_size}"
                )

    @property
    def scale(self) -> float:
        """The factor on the embeddings."""
        return math.sqrt(self.transformer.d_model) if self.embedding_scale is None else self.embedding_scale

    @classmethod
    def build(cls, kind: str, sizes: dict[str, Any], extras: Extras) -> ModelConfig:
        """A configuration from flat values: each one goes to the transformer or to the task model by its name."""
        flat: dict[str, Any] = {**sizes, **extras}
        of_transformer = {field.name for field in fields(TransformerConfig)}
        unknown = set(flat) - of_transformer - {field.name for field in fields(cls)}
        if unknown:
            raise TypeError(f"unknown model options: {', '.join(sorted(unknown))}")
        transformer = TransformerConfig(**{name: flat.pop(name) for name in list(flat) if name in of_transformer})
        return cls(kind=kind, transformer=transformer, **flat)

    def with_assumed(self, assumed: tuple[Assumption, ...]) -> ModelConfig:
        """A copy with other assumptions."""
        return replace(self, assumed=assumed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; :meth:`from_dict` reads them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """The configuration that :meth:`to_dict` described.

        Raises:
            ValueError: if a field is missing or unknown, or a value does not fit.
        """
        try:
            values = dict(values)
            check_types(TransformerConfig, values["transformer"])
            values["transformer"] = TransformerConfig(**values["transformer"])
            values["assumed"] = tuple(Assumption(**item) for item in values.get("assumed", ()))
            check_types(cls, values)
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a model configuration: {error}") from error


# The Python types that JSON values may have, by the type of the field. In Python a bool is an int; here it is not.
JSON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
}


def check_types(cls: type[TransformerConfig] | type[ModelConfig], values: dict[str, Any]) -> None:
    """Raise ``TypeError`` if a value is not of the type of its field."""
    for field in fields(cls):
        allowed = JSON_TYPES.get(str(field.type))
        if allowed and field.name in values and type(values[field.name]) not in allowed:
            raise TypeError(f"{field.name} must be {field.type}, got {values[field.name]!r}")
