"""The engines of :mod:`benchmarks.decode`: each decodes ids to ids, with what it needs made and opened before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from benchmarks.ct2_model import open_ct2, save_ct2, translate_ct2
from mytx.exporter.bundle.generation import GraphSearch, SearchOptions, hypotheses_of, padded
from mytx.exporter.formats.onnx import files as onnx_files
from mytx.exporter.formats.table import FORMATS, PRECISIONS, ExportOptions
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime, RuntimeOptions
from mytx.models.sequence import SequenceModel

Ids = list[list[int]]
Decode = Callable[[Ids, int, int], Ids]  # sources, beams and most steps to the best result of each


@dataclass(frozen=True)
class Files:
    """A model's files in a folder, made once for all numbers of threads.

    Attributes:
        model: as it is in the files.
        folder: ``greedy.onnx``, ``generate.onnx``, ``decoder.onnx``, ``encoder.onnx``, the first two in other
            precisions, ``ct2`` and ``optimum``.
    """

    model: SequenceModel
    folder: Path

    @classmethod
    def write(
        cls, model: SequenceModel, folder: Path, precisions: list[str], beams: bool, plain: bool, optimum: bool
    ) -> Files:
        """Export ``model``.

        Args:
            model: in evaluation mode.
            folder: where to.
            precisions: of the files that search.
            beams: whether ``generate.onnx`` is needed.
            plain: whether the decoder without a cache is needed.
            optimum: whether Optimum's files are needed, of an untrained model of the same size.
        """
        with quiet():
            names = ("encoder", *["decoder"] * plain, "step", "prefill", "greedy", *["generate"] * beams)
            for name in names:  # the files that ship, each made of those before
                onnx_files.export(graphs_of(model), name, folder, ExportOptions())
            for known in (FORMATS[PRECISIONS[precision]] for precision in precisions):
                for name in ("greedy", *["generate"] * beams) if known.made_of else ():
                    known.load_exporter().export(graphs_of(model), name, folder, ExportOptions())
            save_ct2(model, folder / "ct2")
            if optimum:
                write_optimum(model, folder / "optimum")
        return cls(model, folder)


def open_onnx(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """A session with its defaults, and that many threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options)


def mytx_engine(files: Files, precision: str, threads: int, beams: bool) -> Decode:
    """Our graph in onnxruntime."""
    graph = graphs_of(files.model)["generate" if beams else "greedy"]
    session = open_onnx(files.folder / FORMATS[PRECISIONS[precision]].file(graph.name), threads)
    search = GraphSearch(OnnxRuntime(session, RuntimeOptions(threads=threads)), graph.contract)

    def decode(sources: Ids, beams: int, steps: int) -> Ids:
        results = search(*padded(sources, files.model.config.pad_id), SearchOptions(beams, steps))
        return [list(ids) for ((ids, _),) in hypotheses_of(results)]

    return decode


def ct2_engine(files: Files, threads: int, compute_type: str) -> Decode:
    """The same weights in CTranslate2."""
    translator = open_ct2(files.folder / "ct2", threads, compute_type)

    def decode(sources: Ids, beams: int, steps: int) -> Ids:
        return [row[0].ids for row in translate_ct2(translator, sources, num_beams=beams, max_length=steps)]

    return decode


def plain_engine(files: Files, threads: int) -> Decode:
    """Greedy search that runs the decoder without a cache on all that there is, in every step."""
    encoder, decoder = (open_onnx(files.folder / f"{name}.onnx", threads) for name in ("encoder", "decoder"))
    config = files.model.config

    def decode(sources: Ids, beams: int, steps: int) -> Ids:
        src, padding = padded(sources, config.pad_id)
        (memory,) = encoder.run(None, {"src": src, "src_key_padding_mask": padding})
        found = {"memory": memory, "memory_key_padding_mask": padding}
        tgt = np.full((len(sources), 1), config.bos_id, dtype=np.int64)
        for _ in range(steps):
            given = {**found, "tgt": tgt, "tgt_key_padding_mask": np.zeros(tgt.shape, dtype=bool)}
            (logits,) = decoder.run(None, given)
            tgt = np.concatenate([tgt, logits[:, -1:].argmax(-1)], axis=1)
        return tgt[:, 1:].tolist()

    return decode


# --- Optimum ---------------------------------------------------------------------------------------------------------


def has_optimum() -> bool:
    """Whether Optimum with onnxruntime is installed; it needs older packages than we do, so it is not required."""
    try:
        import optimum.onnxruntime  # noqa: F401
    except ImportError:
        return False
    return True


def write_optimum(model: SequenceModel, folder: Path) -> None:
    """An untrained Marian of the size of ``model``, which is the same architecture, exported by Optimum."""
    from optimum.onnxruntime import ORTModelForSeq2SeqLM
    from transformers import MarianConfig, MarianMTModel

    sizes, ids = model.config.transformer, model.config
    config = MarianConfig(
        vocab_size=ids.tgt_vocab_size,
        d_model=sizes.d_model,
        encoder_layers=sizes.num_encoder_layers,
        decoder_layers=sizes.num_decoder_layers,
        encoder_attention_heads=sizes.nhead,
        decoder_attention_heads=sizes.nhead,
        encoder_ffn_dim=sizes.dim_feedforward,
        decoder_ffn_dim=sizes.dim_feedforward,
        activation_function=sizes.activation,
        max_position_embeddings=512,
        pad_token_id=ids.pad_id,
        bos_token_id=ids.bos_id,
        eos_token_id=ids.eos_id,
        decoder_start_token_id=ids.bos_id,
        forced_eos_token_id=None,
    )
    MarianMTModel(config).eval().save_pretrained(folder / "torch")
    ORTModelForSeq2SeqLM.from_pretrained(folder / "torch", export=True).save_pretrained(folder)


def optimum_engine(files: Files, threads: int) -> Decode:
    """Optimum's loop in Python around its files; as many steps as are allowed, since its weights are others."""
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    model = ORTModelForSeq2SeqLM.from_pretrained(files.folder / "optimum", session_options=options)
    pad = files.model.config.pad_id

    def decode(sources: Ids, beams: int, steps: int) -> Ids:
        src, padding = padded(sources, pad)
        found = model.generate(
            input_ids=torch.from_numpy(src),
            attention_mask=torch.from_numpy(~padding).long(),
            num_beams=beams,
            do_sample=False,
            max_new_tokens=steps,
            min_new_tokens=steps,
        )
        return found[:, 1:].tolist()

    return decode
