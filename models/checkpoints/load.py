"""A checkpoint that somebody trained, as a model: read, recognise, size, configure, load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..build import Model, assume, config_of, empty_model, fill_model
from ..config import ModelConfig
from ..embedding import sinusoidal_positions
from ..errors import CheckpointError
from ..vocab import Vocabulary, find_vocab
from .assumptions import APPLY, DEFAULTS, check_heads, choose_settings, option_name
from .embeddings_and_head import place_outer
from .files import read_file
from .folder import CONFIG, load_model
from .key_option import Keys, apply_keys
from .layers import Sizes, place_layers
from .ledger import Ledger, check_complete, raise_mismatch, to_float32
from .names import CLASSIFIER, HEAD, POSITIONS, REQUIRED, SHARED, SOURCE
from .state_dict import unwrap

Vocab = str | Path | Mapping[str, Any] | Vocabulary


def load_checkpoint(
    path: str | Path,
    nhead: int | None = None,
    *,
    keys: Keys = (),
    activation: str | None = None,
    norm_first: bool | None = None,
    layer_norm_eps: float | None = None,
    embedding_scale: float | None = None,
    pad_id: int | None = None,
    bos_id: int | None = None,
    eos_id: int | None = None,
    pooling: str | None = None,
    vocab: Vocab | None = None,
) -> Model:
    """The model in a ``.pt``, ``.pkl`` or ``.safetensors`` file, in float32, on the CPU and in evaluation mode.

    Sizes are read from the shapes. What a checkpoint cannot say is taken from the options or their defaults, the
    seed's, and recorded in ``config_of(model).assumed``. Every tensor of the file is used or the load fails.

    Args:
        path: the file, or a folder that ``save_model`` wrote.
        nhead: number of heads; a checkpoint does not tell.
        keys: which tensor is what, where names and shapes leave it open: ``{"source_embedding": "embed.weight"}`` or
            ``["source_embedding=embed.weight"]``. See :func:`~mytx.models.checkpoints.key_option.apply_keys`.
        activation, norm_first, layer_norm_eps: as in :class:`~mytx.transformer.TransformerConfig`.
        embedding_scale, pad_id, bos_id, eos_id, pooling: as in :class:`~mytx.models.ModelConfig`.
        vocab: vocabulary, or its JSON file; default: ``vocab.json`` beside the checkpoint. Ids of its special tokens
            are taken where no option gives them.

    Raises:
        CheckpointError: with a message that names the problem and a hint with the next step.
    """
    path = Path(path)
    given = {
        "activation": activation,
        "norm_first": norm_first,
        "layer_norm_eps": layer_norm_eps,
        "embedding_scale": embedding_scale,
        "pad_id": pad_id,
        "bos_id": bos_id,
        "eos_id": eos_id,
        "pooling": pooling,
    }
    if path.is_dir():
        return load_folder(path, keys, {"nhead": nhead, **given}, vocab)
    ledger = read_tensors(path)
    apply_keys(ledger, keys)
    sizes = place_layers(ledger)
    kind = place_outer(ledger, sizes.d_model, has_decoder=sizes.num_decoder_layers > 0)
    config = configure(kind, sizes, ledger, nhead, given, read_vocab(kind, path, vocab))
    return model_of(config, ledger)


def read_tensors(path: Path) -> Ledger:
    """The tensors in the file ``path``, none of them placed yet."""
    found = unwrap(read_file(path))
    ledger = Ledger(found.tensors)
    if found.others:
        others = ", ".join(place or "the outermost" for place in found.others)
        ledger.assume("state dict", found.place or "the outermost", f"preferred to {others}")
    return ledger


def read_vocab(kind: str, path: Path, vocab: Vocab | None) -> Vocabulary | None:
    """The vocabulary that was given or that lies beside ``path``, for a model that has tokens."""
    if kind == "transformer":
        if vocab is not None:
            raise CheckpointError("a bare transformer has no tokens, so no vocabulary", "leave out --vocab")
        return None
    if vocab is None:
        vocab = find_vocab(path)
    if vocab is None or isinstance(vocab, Vocabulary):
        return vocab
    return Vocabulary.from_dict(vocab) if isinstance(vocab, Mapping) else Vocabulary.read(vocab)


def configure(
    kind: str, sizes: Sizes, ledger: Ledger, nhead: int | None, given: dict[str, Any], vocabulary: Vocabulary | None
) -> ModelConfig:
    """The configuration that shapes, options and vocabulary make, with what was assumed.

    Raises:
        CheckpointError: for a head count that is missing or does not fit, or an option that does not.
    """
    missing = [name for name in REQUIRED[kind] if name not in ledger.placed]
    if missing:
        raise_mismatch(missing, [])
    heads = check_heads(sizes.d_model, nhead)
    values, assumed = choose_settings(kind, sizes.d_model, given, vocabulary)
    flat = {**vars(sizes), **values, "nhead": heads}
    if kind != "transformer":
        source_rows = rows(ledger, SHARED) or rows(ledger, SOURCE)
        flat["src_vocab_size"] = source_rows
        flat["tgt_vocab_size"] = rows(ledger, HEAD)
        flat["max_length"] = rows(ledger, POSITIONS) or DEFAULTS["max_length"]
        if POSITIONS not in ledger.placed:
            ledger.place(POSITIONS, "sinusoid", sinusoidal_positions(flat["max_length"], sizes.d_model).unsqueeze(1))
            ledger.assume("positions", f"sinusoidal, {flat['max_length']}", "default: the checkpoint has none")
        if vocabulary:
            vocabulary.check_rows(source_rows, None if kind == "classification" else flat["tgt_vocab_size"])
    if kind == "classification":
        flat["dim_classification"] = rows(ledger, CLASSIFIER[0])
        flat["num_classification"] = rows(ledger, CLASSIFIER[2])
    try:
        config = ModelConfig.build(kind, flat, {})
    except ValueError as error:
        wrong = next((name for name in given if str(error).startswith(name)), "")
        raise CheckpointError(
            str(error), f"give another {option_name(wrong)}" if wrong else "is it the whole model?"
        ) from error
    return config.with_assumed((*assumed, *ledger.assumed))


def rows(ledger: Ledger, ours: str) -> int:
    """Rows of the tensor that was placed as ``ours``; 0 where there is none."""
    tensor = ledger.placed.get(ours)
    return tensor.size(0) if tensor is not None and tensor.dim() > 0 else 0


def model_of(config: ModelConfig, ledger: Ledger) -> Model:
    """The model of ``config`` with exactly the tensors of ``ledger``.

    Raises:
        CheckpointError: where tensors are missing, left over, of another shape, not floats or not finite.
    """
    model = empty_model(config)
    if config.kind in ("translation", "couplet"):
        ledger.nest("my_transformer.")
    check_complete(ledger, model.state_dict())
    recorded = len(ledger.assumed)
    state = to_float32(ledger)
    assume(model, (*config.assumed, *ledger.assumed[recorded:]))
    return fill_model(model, state)


def load_folder(path: Path, keys: Keys, given: dict[str, Any], vocab: Vocab | None) -> Model:
    """The model that ``save_model`` wrote to ``path``; its configuration decides, and nothing may contradict it.

    Raises:
        CheckpointError: where an option or the vocabulary does, or the folder is not a model.
    """
    model = load_model(path)
    config = config_of(model)
    if keys:
        raise CheckpointError(f"--key is for checkpoints, {path} is a folder that save_model wrote", "leave it out")
    stored = {**vars(config.transformer), **vars(config), "embedding_scale": config.scale}
    for name, value in given.items():
        if value is not None and value != stored[name]:
            raise CheckpointError(
                f"{path / CONFIG} says {name}={stored[name]}, {option_name(name)} says {value}",
                f"leave out {option_name(name)}",
            )
    vocabulary = read_vocab(config.kind, path, vocab)
    if vocabulary:
        has_target = config.kind != "classification"
        vocabulary.check_rows(config.src_vocab_size, config.tgt_vocab_size if has_target else None)
        for name, value in vocabulary.special_ids().items():
            if value != stored[name] and name in APPLY[config.kind]:
                raise CheckpointError(
                    f"{path / CONFIG} says {name}={stored[name]}, {vocabulary.name} says {value}",
                    "change the one that is wrong, or give another vocabulary with --vocab FILE",
                )
    return model
