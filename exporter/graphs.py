"""From a model to the graphs that it has: for each a contract and a module that takes and gives plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..models import ClassificationModel, CoupletModel, Model, ModelConfig, TranslationModel
from ..transformer import MyTransformer
from .contract import ATTENTION_MEANING, PADDING_MEANING, Axis, Contract, TensorSpec
from .errors import OptionError

# Lengths at export: at least 2 and different, or torch.export takes one for another or for a constant.
BATCH = Axis("batch", traced=2)
SOURCE = Axis("source", traced=7)
TARGET = Axis("target", traced=5)

DEFAULT_MASKS = "tgt_mask,src_key_padding_mask,tgt_key_padding_mask,memory_key_padding_mask"
# The seed's mask arguments in its order, with the axes of the query and the key, or of the batch and the key.
MASK_AXES = {
    "src_mask": (SOURCE, SOURCE),
    "tgt_mask": (TARGET, TARGET),
    "memory_mask": (TARGET, SOURCE),
    "src_key_padding_mask": (BATCH, SOURCE),
    "tgt_key_padding_mask": (BATCH, TARGET),
    "memory_key_padding_mask": (BATCH, SOURCE),
}
ENCODER_MASKS = ("src_mask", "src_key_padding_mask")
DECODER_MASKS = ("tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask")


class GraphModule(nn.Module):
    """A model behind a function of positional tensors, which is what exporters take."""

    def __init__(self, model: nn.Module, call: Callable[..., Tensor], names: Iterable[str]) -> None:
        super().__init__()
        self.model = model
        self.call = call
        self.names = tuple(names)

    def forward(self, *tensors: Tensor) -> Tensor:
        """The tensors in the contract's order -> its output."""
        return self.call(self.model, **dict(zip(self.names, tensors, strict=True)))


@dataclass(frozen=True)
class Graph:
    """A graph to be exported.

    Attributes:
        contract: what it takes and gives.
        module: computes it, eagerly.
        scopes: the parts of the model whose parameters and buffers it holds, by prefix of their state-dict names.
    """

    contract: Contract
    module: GraphModule
    scopes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.contract.graph

    def weights(self) -> dict[str, Tensor]:
        """The parameters and buffers that the graph holds, by state-dict name."""
        state = self.module.model.state_dict()
        return {name: tensor for name, tensor in state.items() if name.startswith(self.scopes)}


def graphs_of(model: Model, masks: str | None = None) -> dict[str, Graph]:
    """The graphs that ``model`` has, by name.

    Args:
        model: a task model or a bare ``MyTransformer``.
        masks: for a bare model, its mask inputs: a comma list of the seed's mask arguments, each optionally
            ``:bool``, ``:float`` or ``:3d``. None is :data:`DEFAULT_MASKS`.

    Raises:
        OptionError: for masks that do not exist, or on a model that has none.
    """
    if not isinstance(model, MyTransformer) and masks is not None:
        raise OptionError("--masks is for a bare MyTransformer: a model on ids builds its masks inside", "leave it out")
    if isinstance(model, ClassificationModel):
        return _classification_graphs(model)
    if isinstance(model, MyTransformer):
        graphs = _bare_graphs(model, parse_masks(DEFAULT_MASKS if masks is None else masks))
        layers = model.config.num_decoder_layers
    else:
        graphs = _sequence_graphs(model)
        layers = model.config.transformer.num_decoder_layers
    # Without decoder layers nothing reads the memory: the encoder is all that there is to export.
    return graphs if layers else {"encoder": graphs["encoder"]}


# --- models on ids ---------------------------------------------------------------------------------------------------


def _encode(model: Any, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
    return model.encode(src, src_key_padding_mask)


def _decode(
    model: Any, tgt: Tensor, memory: Tensor, tgt_key_padding_mask: Tensor, memory_key_padding_mask: Tensor
) -> Tensor:
    return model.decode(tgt, memory, tgt_key_padding_mask, memory_key_padding_mask)


def _forward(model: Any, **inputs: Tensor) -> Tensor:
    return model(**inputs)


def _token_axes(config: ModelConfig) -> tuple[Axis, Axis]:
    """Source and target, bounded by the positions."""
    for axis in (SOURCE, TARGET):
        if config.max_length <= axis.traced:
            raise OptionError(f"{config.max_length} positions are too few to export: more than {axis.traced} needed")
    return (
        Axis("source", traced=SOURCE.traced, maximum=config.max_length),
        Axis("target", traced=TARGET.traced, maximum=config.max_length),
    )


def _ids(name: str, axis: Axis, limit: int) -> TensorSpec:
    return TensorSpec(name, "int64", (BATCH, axis), f"ids, 0 to {limit - 1}", "ids", limit)


def _padding(name: str, axes: tuple[Axis | int, ...], dtype: str = "bool") -> TensorSpec:
    return TensorSpec(name, dtype, axes, PADDING_MEANING[dtype], "padding")


def _sequence_graphs(model: TranslationModel | CoupletModel) -> dict[str, Graph]:
    config = model.config
    source, target = _token_axes(config)
    width, vocabulary = config.transformer.d_model, config.tgt_vocab_size
    src = _ids("src", source, config.src_vocab_size)
    tgt = _ids("tgt", target, vocabulary)
    src_padding = _padding("src_key_padding_mask", (BATCH, source))
    tgt_padding = _padding("tgt_key_padding_mask", (BATCH, target))
    memory_padding = _padding("memory_key_padding_mask", (BATCH, source))
    memory = TensorSpec("memory", "float32", (BATCH, source, width), "the encoder's output")
    logits = TensorSpec("logits", "float32", (BATCH, target, vocabulary), "scores of the next id, before softmax")
    ids = {"pad": config.pad_id, "bos": config.bos_id, "eos": config.eos_id}
    shared = isinstance(model, CoupletModel)
    source_side = ("token_embedding." if shared else "src_token_embedding.", "pos_embedding.")
    target_side = ("token_embedding." if shared else "tgt_token_embedding.", "pos_embedding.")

    def graph(
        name: str, call: Callable[..., Tensor], inputs: tuple[TensorSpec, ...], output: TensorSpec, *scopes: str
    ) -> Graph:
        contract = Contract(name, inputs, (output,), "batch first", ids)
        return Graph(contract, GraphModule(model, call, [spec.name for spec in inputs]), scopes)

    encoder_scopes = (*source_side, "my_transformer.encoder.")
    decoder_scopes = (*target_side, "my_transformer.decoder.", "classification.")
    return {
        "encoder": graph("encoder", _encode, (src, src_padding), memory, *encoder_scopes),
        "decoder": graph("decoder", _decode, (tgt, memory, tgt_padding, memory_padding), logits, *decoder_scopes),
        "full": graph("full", _forward, (src, tgt, src_padding, tgt_padding), logits, *encoder_scopes, *decoder_scopes),
    }


def _classification_graphs(model: ClassificationModel) -> dict[str, Graph]:
    config = model.config
    source, _ = _token_axes(config)
    inputs = (_ids("src", source, config.src_vocab_size), _padding("src_key_padding_mask", (BATCH, source)))
    memory = TensorSpec("memory", "float32", (BATCH, source, config.transformer.d_model), "the encoder's output")
    logits = TensorSpec("logits", "float32", (BATCH, config.num_classification), "scores of the classes")
    scopes = ("src_token_embedding.", "pos_embedding.", "encoder.")
    names = [spec.name for spec in inputs]
    ids = {"pad": config.pad_id}
    return {
        "encoder": Graph(
            Contract("encoder", inputs, (memory,), "batch first", ids), GraphModule(model, _encode, names), scopes
        ),
        "full": Graph(
            Contract("full", inputs, (logits,), "batch first", ids),
            GraphModule(model, _forward, names),
            (*scopes, "classifier."),
        ),
    }


# --- the bare transformer --------------------------------------------------------------------------------------------


def parse_masks(text: str) -> dict[str, str]:
    """``tgt_mask:3d,src_key_padding_mask`` -> ``{"tgt_mask": "3d", "src_key_padding_mask": "bool"}``.

    A padding mask is bool unless it says ``:float``; an attention mask is float, 2-D, unless it says ``:bool`` or
    ``:3d`` (float, a matrix for each sentence and head).

    Raises:
        OptionError: for a name or kind that does not exist, or a name that stands twice.
    """
    kinds: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, kind = item.partition(":")
        if name not in MASK_AXES:
            raise OptionError(f"--masks: there is no mask {name!r}", f"choose from {', '.join(MASK_AXES)}")
        if name in kinds:
            raise OptionError(f"--masks: {name} stands twice", "name each mask once")
        padding = name.endswith("key_padding_mask")
        allowed = ("bool", "float") if padding else ("bool", "float", "3d")
        kind = kind or ("bool" if padding else "float")
        if kind not in allowed:
            raise OptionError(f"--masks: {name} cannot be {kind!r}", f"choose from {', '.join(allowed)}")
        kinds[name] = kind
    return {name: kinds[name] for name in MASK_AXES if name in kinds}


def _mask(name: str, kind: str, heads: int) -> TensorSpec:
    axes: tuple[Axis | int, ...] = MASK_AXES[name]
    dtype = "bool" if kind == "bool" else "float32"
    if name.endswith("key_padding_mask"):
        return _padding(name, axes, dtype)
    if kind == "3d":
        axes = (Axis("batch", traced=BATCH.traced, times=heads), *axes)
    return TensorSpec(name, dtype, axes, ATTENTION_MEANING[dtype], "attention")


def _bare_encode(model: Any, src: Tensor, **masks: Tensor) -> Tensor:
    return model.encoder(src, mask=masks.get("src_mask"), src_key_padding_mask=masks.get("src_key_padding_mask"))


def _bare_decode(model: Any, tgt: Tensor, memory: Tensor, **masks: Tensor) -> Tensor:
    return model.decoder(tgt, memory, **masks)


def _bare_graphs(model: MyTransformer, masks: dict[str, str]) -> dict[str, Graph]:
    width = model.d_model
    src = TensorSpec("src", "float32", (SOURCE, BATCH, width), "embedded source")
    tgt = TensorSpec("tgt", "float32", (TARGET, BATCH, width), "embedded target")
    memory = TensorSpec("memory", "float32", (SOURCE, BATCH, width), "the encoder's output")
    specs = {name: _mask(name, kind, model.nhead) for name, kind in masks.items()}

    def graph(name: str, call: Callable[..., Tensor], inputs: tuple[TensorSpec, ...], *scopes: str) -> Graph:
        axes = (SOURCE if name == "encoder" else TARGET, BATCH, width)
        output = TensorSpec("output", "float32", axes, f"the {'encoder' if name == 'encoder' else 'decoder'}'s output")
        contract = Contract(name, inputs, (output,), "sequence first")
        return Graph(contract, GraphModule(model, call, [spec.name for spec in inputs]), scopes)

    encoder_masks = tuple(specs[name] for name in ENCODER_MASKS if name in specs)
    decoder_masks = tuple(specs[name] for name in DECODER_MASKS if name in specs)
    return {
        "encoder": graph("encoder", _bare_encode, (src, *encoder_masks), "encoder."),
        "decoder": graph("decoder", _bare_decode, (tgt, memory, *decoder_masks), "decoder."),
        "full": graph("full", _forward, (src, tgt, *specs.values()), "encoder.", "decoder."),
    }
