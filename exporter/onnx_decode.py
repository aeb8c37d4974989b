"""A whole decode as one ONNX file: encoder, the memory's keys and values, and the search around the cached step.

The step is :class:`mytx.models.CachedDecoder`, exported; the search is :mod:`.onnx_search`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import Dim

from ..models import CachedDecoder, CoupletModel, TranslationModel
from . import onnx_format
from .graphs import BATCH, SOURCE, graphs_of
from .onnx_nodes import BOOL, FLOAT, INT, Nodes, Part, tensor
from .onnx_search import Sizes, add_search
from .program import trace

PAST = 4  # positions at export; as the other lengths, none of 0, 1 or another's
BEAMS = 3


class Step(nn.Module):
    """The cached step with a dimension for the hypotheses of a sentence, so that none must be a product of two."""

    def __init__(self, decoder: CachedDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, tgt: Tensor, src_key_padding_mask: Tensor, cross: list[Tensor], past: list[Tensor]
    ) -> list[Tensor]:
        """``tgt [N, B]``, ``past [N, B, H, ., .]`` -> logits ``[N, B, V]`` and the grown past."""
        shape = tgt.shape
        rows = [cache.flatten(0, 1) for cache in past]
        logits, grown = self.decoder.step(tgt.reshape(-1, 1), rows, cross, src_key_padding_mask)
        return [torch.unflatten(value, 0, shape) for value in [logits, *grown]]


class Cross(nn.Module):
    """The keys and values of the memory."""

    def __init__(self, decoder: CachedDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, memory: Tensor, src_key_padding_mask: Tensor) -> list[Tensor]:
        """As :meth:`mytx.models.CachedDecoder.cross`."""
        return self.decoder.cross(memory, src_key_padding_mask)


@dataclass(frozen=True)
class DecodeParts:
    """What a decode is made of, exported.

    Attributes:
        encoder: ids and padding to the memory.
        cross: memory and padding to keys and values.
        step: one position further.
        sizes: of the model.
    """

    encoder: ir.Model
    cross: ir.Model
    step: ir.Model
    sizes: Sizes


def export_parts(model: TranslationModel | CoupletModel, opset: int = onnx_format.DEFAULT_OPSET) -> DecodeParts:
    """Export the parts of a decode with ``model``, which is in evaluation mode.

    Raises:
        ExportError: where PyTorch cannot.
    """
    config, decoder = model.config, CachedDecoder(model)
    layers, heads = config.transformer.num_decoder_layers, config.transformer.nhead
    width = config.transformer.d_model
    sizes = Sizes(
        layers,
        heads,
        width // heads,
        config.tgt_vocab_size,
        config.max_length,
        config.bos_id,
        config.eos_id,
        config.pad_id,
    )
    batch, beams = Dim("batch", min=1), Dim("beams", min=1)
    source = Dim("source", min=1, max=config.max_length)
    past = Dim("past", min=0, max=config.max_length - 1)
    n, s = BATCH.traced, SOURCE.traced
    padding = torch.zeros(n, s, dtype=torch.bool)

    def caches(length: int, *rows: int) -> list[Tensor]:
        return [
            torch.randn(*rows, heads, *((sizes.head_dim, length) if i % 2 == 0 else (length, sizes.head_dim)))
            for i in sizes.caches
        ]

    step = _export(
        Step(decoder),
        {
            "tgt": torch.ones(n, BEAMS, dtype=torch.int64),
            "src_key_padding_mask": padding,
            "cross": caches(s, n),
            "past": caches(PAST, n, BEAMS),
        },
        {
            "tgt": {0: batch, 1: beams},
            "src_key_padding_mask": {0: batch, 1: source},
            "cross": [{0: batch, 3 - i % 2: source} for i in sizes.caches],
            "past": [{0: batch, 1: beams, 4 - i % 2: past} for i in sizes.caches],
        },
        opset,
    )
    cross = _export(
        Cross(decoder),
        {"memory": torch.randn(n, s, width), "src_key_padding_mask": padding},
        {name: {0: batch, 1: source} for name in ("memory", "src_key_padding_mask")},
        opset,
    )
    return DecodeParts(onnx_format.to_onnx(graphs_of(model)["encoder"], opset), cross, step, sizes)


def search_model(parts: DecodeParts, *, beams: bool) -> ir.Model:
    """One graph that takes source ids and gives target ids.

    Inputs: ``src [N, S]`` int64, ``src_key_padding_mask [N, S]`` bool, and the single numbers ``max_length`` and
    ``min_length`` (int64) and ``length_penalty`` (float32); with ``beams`` also ``num_beams`` and ``num_hypotheses``
    (int64). Outputs: ``tokens [N, n, L]`` and ``lengths [N, n]`` int64, ``scores [N, n]`` float32. All mean what they
    mean in :class:`mytx.models.Generator`; a number out of range is brought into it.

    Args:
        parts: exported.
        beams: whether there can be more than one hypothesis. Greedy search without is the same, with less to do.
    """
    op = Nodes()
    initializers: dict[str, ir.Value] = {}
    inputs = {
        "src": tensor("src", INT, 2),
        "src_key_padding_mask": tensor("src_key_padding_mask", BOOL, 2),
        "max_length": tensor("max_length", INT, 0),
        "min_length": tensor("min_length", INT, 0),
        "length_penalty": tensor("length_penalty", FLOAT, 0),
    }
    if beams:
        inputs |= {name: tensor(name, INT, 0) for name in ("num_beams", "num_hypotheses")}
    (memory,) = Part(parts.encoder, "encoder/").inline(op, inputs, initializers)
    cross = Part(parts.cross, "cross/").inline(op, {**inputs, "memory": memory}, initializers)
    found = add_search(op, parts.sizes, Part(parts.step, "step/"), inputs, cross, initializers)
    outputs = []
    for value, (name, dtype, rank) in zip(
        found, (("tokens", INT, 3), ("lengths", INT, 2), ("scores", FLOAT, 2)), strict=True
    ):
        output = op("Identity", value)
        output.name, output.type, output.shape = name, ir.TensorType(dtype), ir.Shape([None] * rank)
        outputs.append(output)
    graph = ir.Graph(
        list(inputs.values()),
        outputs,
        nodes=op.list,
        initializers=list(initializers.values()),
        opset_imports=dict(parts.encoder.graph.opset_imports),
        name="generate" if beams else "greedy",
    )
    return ir.Model(graph, ir_version=parts.encoder.ir_version)


def _export(module: nn.Module, inputs: dict[str, Any], dims: dict[str, Any], opset: int) -> ir.Model:
    """``module`` as ONNX, its inputs named ``past_0``, ``past_1`` and so on for a list."""
    what = f"the {type(module).__name__.lower()} of a decode"
    model = onnx_format.from_program(trace(module, inputs, dims, what), what, opset)
    for value in model.graph.initializers.values():
        if (value.name or "").startswith("decoder."):
            value.metadata_props["weight"] = value.name or ""
    onnx_format.simplify(model)
    return model
