"""The graphs of :mod:`mytx.models` and of a bare ``MyTransformer``, with their contracts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...models import ClassificationModel, CoupletModel, Model, ModelConfig, TranslationModel
from ...transformer import MyTransformer
from ..contracts.contract import ATTENTION_MEANING, Axis, Contract, TensorSpec
from ..errors import OptionError
from .decode_graphs import decode_graphs
from .graph import BATCH, SOURCE, TARGET, Graph, ids_spec, padding_spec
from .modules import Bare, BareDecode, BareEncode, Classify, Decode, Encode, GraphModule, Translate

DEFAULT_MASKS = "tgt_mask,src_key_padding_mask,tgt_key_padding_mask,memory_key_padding_mask"
# Mask arguments in the order of MyTransformer.forward, with their axes: query and key, or batch and key.
MASK_AXES = {
    "src_mask": (SOURCE, SOURCE),
    "tgt_mask": (TARGET, TARGET),
    "memory_mask": (TARGET, SOURCE),
    "src_key_padding_mask": (BATCH, SOURCE),
    "tgt_key_padding_mask": (BATCH, TARGET),
    "memory_key_padding_mask": (BATCH, SOURCE),
}
DEFAULT_KINDS = {name: "bool" if name.endswith("key_padding_mask") else "float" for name in MASK_AXES}
ENCODER_MASKS = ("src_mask", "src_key_padding_mask")
DECODER_MASKS = ("tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask")


def graphs_of(model: Model, masks: str | None = None) -> dict[str, Graph]:
    """The graphs of ``model``, by name.

    Args:
        model: a task model or a bare ``MyTransformer``.
        masks: for a bare model, the masks that its graphs take: names of arguments of ``MyTransformer.forward``,
            separated by commas, each optionally with ``:bool``, ``:float`` or ``:3d``. None means
            :data:`DEFAULT_MASKS`.

    Raises:
        OptionError: for a mask that does not exist, or for masks of a model on ids.
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
    # Without decoder layers nothing reads the memory, so only the encoder can be exported.
    return graphs if layers else {"encoder": graphs["encoder"]}


# --- models on ids ---------------------------------------------------------------------------------------------------


def _token_axes(config: ModelConfig) -> tuple[Axis, Axis]:
    """The axes of source and target; the number of positions is the longest length."""
    for axis in (SOURCE, TARGET):
        if config.max_length <= axis.traced:
            raise OptionError(
                f"{config.max_length} positions are too few to export, more than {axis.traced} are needed",
                "give the model more: without training, positions are only sines and cosines",
            )
    return (
        Axis("source", traced=SOURCE.traced, maximum=config.max_length),
        Axis("target", traced=TARGET.traced, maximum=config.max_length),
    )


def _sequence_graphs(model: TranslationModel | CoupletModel) -> dict[str, Graph]:
    config = model.config
    source, target = _token_axes(config)
    width, vocabulary = config.transformer.d_model, config.tgt_vocab_size
    src = ids_spec("src", (BATCH, source), config.src_vocab_size, hidden_by=("src_key_padding_mask",))
    tgt = ids_spec("tgt", (BATCH, target), vocabulary, hidden_by=("tgt_key_padding_mask",), future="inside")
    src_padding = padding_spec("src_key_padding_mask", (BATCH, source))
    tgt_padding = padding_spec("tgt_key_padding_mask", (BATCH, target))
    memory_padding = padding_spec("memory_key_padding_mask", (BATCH, source))
    memory = TensorSpec("memory", "float32", (BATCH, source, width), "the encoder's output")
    memory_in = replace(memory, hidden_by=("memory_key_padding_mask",))
    logits = TensorSpec("logits", "float32", (BATCH, target, vocabulary), "scores of the next id, before softmax")
    ids = {"pad": config.pad_id, "bos": config.bos_id, "eos": config.eos_id}
    shared = isinstance(model, CoupletModel)
    source_side = ("token_embedding." if shared else "src_token_embedding.", "pos_embedding.")
    target_side = ("token_embedding." if shared else "tgt_token_embedding.", "pos_embedding.")

    def graph(
        name: str, module: GraphModule, inputs: tuple[TensorSpec, ...], output: TensorSpec, *scopes: str
    ) -> Graph:
        return Graph(Contract(name, inputs, (output,), "batch first", ids), module, scopes)

    encoder_scopes = (*source_side, "my_transformer.encoder.")
    decoder_scopes = (*target_side, "my_transformer.decoder.", "classification.")
    decoder_inputs = (tgt, memory_in, tgt_padding, memory_padding)
    full_inputs = (src, tgt, src_padding, tgt_padding)
    halves = {
        "encoder": graph("encoder", Encode(model), (src, src_padding), memory, *encoder_scopes),
        "decoder": graph("decoder", Decode(model), decoder_inputs, logits, *decoder_scopes),
        "full": graph("full", Translate(model), full_inputs, logits, *encoder_scopes, *decoder_scopes),
    }
    if not config.transformer.num_decoder_layers:
        return halves
    return halves | decode_graphs(model, source, encoder_scopes, decoder_scopes)


def _classification_graphs(model: ClassificationModel) -> dict[str, Graph]:
    config = model.config
    source, _ = _token_axes(config)
    src = ids_spec("src", (BATCH, source), config.src_vocab_size, hidden_by=("src_key_padding_mask",))
    padding = padding_spec("src_key_padding_mask", (BATCH, source))
    memory = TensorSpec("memory", "float32", (BATCH, source, config.transformer.d_model), "the encoder's output")
    logits = TensorSpec("logits", "float32", (BATCH, config.num_classification), "scores of the classes")
    scopes = ("src_token_embedding.", "pos_embedding.", "encoder.")
    ids = {"pad": config.pad_id}
    # Upstream's pooling includes padding, so there the values at padding change the result.
    pooled = src if model.skip_padding else replace(src, hidden_by=())
    return {
        "encoder": Graph(Contract("encoder", (src, padding), (memory,), "batch first", ids), Encode(model), scopes),
        "full": Graph(
            Contract("full", (pooled, padding), (logits,), "batch first", ids),
            Classify(model),
            (*scopes, "classifier."),
        ),
    }


# --- the bare transformer --------------------------------------------------------------------------------------------


def parse_masks(text: str) -> dict[str, str]:
    """``tgt_mask:3d,src_key_padding_mask`` -> ``{"tgt_mask": "3d", "src_key_padding_mask": "bool"}``.

    The default is bool for a padding mask, and 2-D float for an attention mask; ``:3d`` is float with a matrix for each
    sentence and head.

    Raises:
        OptionError: for a name or kind that does not exist, or a name that is given twice.
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
        kind = kind or DEFAULT_KINDS[name]
        if kind not in allowed:
            raise OptionError(f"--masks: {name} cannot be {kind!r}", f"choose from {', '.join(allowed)}")
        kinds[name] = kind
    return {name: kinds[name] for name in MASK_AXES if name in kinds}


def masks_of(contracts: Iterable[Contract]) -> str:
    """The argument ``masks`` with which :func:`graphs_of` gives graphs with these contracts."""
    kinds: dict[str, str] = {}
    for contract in contracts:
        for spec in contract.inputs:
            if spec.name in MASK_AXES and not spec.optional:
                kinds[spec.name] = "3d" if len(spec.axes) == 3 else spec.dtype.removesuffix("32")
    return ",".join(f"{name}:{kind}" for name, kind in kinds.items())


def _mask(name: str, kind: str, heads: int) -> TensorSpec:
    axes: tuple[Axis | int, ...] = MASK_AXES[name]
    dtype = "bool" if kind == "bool" else "float32"
    if name.endswith("key_padding_mask"):
        return padding_spec(name, axes, dtype)
    if kind == "3d":
        axes = (Axis("batch", traced=BATCH.traced, times=heads), *axes)
    return TensorSpec(name, dtype, axes, ATTENTION_MEANING[dtype], "attention")


def _bare_graphs(model: MyTransformer, masks: dict[str, str]) -> dict[str, Graph]:
    width = model.d_model
    src = TensorSpec("src", "float32", (SOURCE, BATCH, width), "embedded source")
    tgt = TensorSpec("tgt", "float32", (TARGET, BATCH, width), "embedded target")
    memory = TensorSpec("memory", "float32", (SOURCE, BATCH, width), "the encoder's output")
    specs = {name: _mask(name, masks.get(name, DEFAULT_KINDS[name]), model.nhead) for name in MASK_AXES}

    def hidden(spec: TensorSpec, *by: str) -> TensorSpec:
        """``spec``, hidden by the masks ``by`` if all are inputs; in the target also later positions by its mask."""
        future = "tgt_mask" if spec is tgt and "tgt_mask" in masks else ""
        return replace(spec, hidden_by=by if set(by) <= set(masks) else (), future=future)

    def graph(
        module: GraphModule, inputs: tuple[TensorSpec, ...], possible: Iterable[str], name: str, *scopes: str
    ) -> Graph:
        axes = (SOURCE if name == "encoder" else TARGET, BATCH, width)
        output = TensorSpec("output", "float32", axes, f"the {'encoder' if name == 'encoder' else 'decoder'}'s output")
        given = tuple(specs[mask] for mask in possible if mask in masks)
        more = tuple(specs[mask] for mask in possible if mask not in masks)
        return Graph(Contract(name, (*inputs, *given), (output,), "sequence first"), module, scopes, more)

    source, target = "src_key_padding_mask", "tgt_key_padding_mask"
    memory_padding = "memory_key_padding_mask"
    encoder_inputs = (hidden(src, source),)
    decoder_inputs = (hidden(tgt, target), hidden(memory, memory_padding))
    full_inputs = (hidden(src, source, memory_padding), hidden(tgt, target))
    return {
        "encoder": graph(BareEncode(model), encoder_inputs, ENCODER_MASKS, "encoder", "encoder."),
        "decoder": graph(BareDecode(model), decoder_inputs, DECODER_MASKS, "decoder", "decoder."),
        "full": graph(Bare(model), full_inputs, MASK_AXES, "full", "encoder.", "decoder."),
    }
