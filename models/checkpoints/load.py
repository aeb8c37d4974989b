"""Loads a checkpoint into a model: read the file, place the tensors, read the sizes, configure, build."""

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

    Sizes are read from the shapes. Settings that a checkpoint does not hold come from the options or from their
    defaults, which are those of the original code, and are recorded in ``config_of(model).assumed``. If a tensor of the
    file is not used, loading fails.

    Args:
        path: the file, or a folder that ``save_model`` wrote.
        nhead: number of heads, which is not in a checkpoint.
        keys: which tensor is which part of the model, if names and shapes do not say:
            ``{"source_embedding": "embed.weight"}`` or ``["source_embedding=embed.weight"]``. See
            :func:`~mytx.models.checkpoints.key_option.apply_keys`.
        activation, norm_first, layer_norm_eps: as in :class:`~mytx.transformer.TransformerConfig`.
        embedding_scale, pad_id, bos_id, eos_id, pooling: as in :class:`~mytx.models.ModelConfig`.
        vocab: vocabulary, or its JSON file. The default is ``vocab.json`` next to the checkpoint. Its special tokens
            give the special ids that no option gives.

    Raises:
        CheckpointError: if the checkpoint cannot be loaded; the message names the problem, the hint the next step.
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
    """A ledger with the tensors in the file ``path``; none of them is placed yet."""
    found = unwrap(read_file(path))
    ledger = Ledger(found.tensors)
    if found.others:
        others = ", ".join(place or "the outermost" for place in found.others)
        ledger.assume("state dict", found.place or "the outermost", f"preferred to {others}")
    return ledger


def read_vocab(kind: str, path: Path, vocab: Vocab | None) -> Vocabulary | None:
    """The vocabulary that is given or is next to ``path``, for a model that has tokens."""
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
    """The configuration from shapes, options and vocabulary, with all assumptions.

    Raises:
        CheckpointError: if the head count is missing, or it or an option does not fit.
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
    """The number of rows of the tensor placed at ``ours``; 0 if there is none."""
    tensor = ledger.placed.get(ours)
    return tensor.size(0) if tensor is not None and tensor.dim() > 0 else 0


def model_of(config: ModelConfig, ledger: Ledger) -> Model:
    """The model of this configuration with the tensors of ``ledger``.

    Raises:
        CheckpointError: if tensors are missing, unexpected, of another shape, not floats or not finite.
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
    """The model that ``save_model`` wrote to ``path``. Its configuration holds all settings.

    Raises:
        CheckpointError: if an option or the vocabulary contradicts the configuration, or the folder holds no model.
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
