"""Places the tensors outside the layers: embeddings, positions and output projection. By known names, or by shape."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from ..errors import CheckpointError
from .ledger import Ledger, describe
from .names import CLASSIFIER, HEAD, HEAD_BIAS, LAYER, POSITIONS, ROLES, SHARED, SOURCE, TARGET

#: Names in the original task models and in PyTorch's translation tutorial; any prefix may come before them.
KNOWN = {
    **{name: name for name in (SOURCE, TARGET, SHARED, POSITIONS, HEAD, HEAD_BIAS, *CLASSIFIER)},
    "src_tok_emb.embedding.weight": SOURCE,
    "tgt_tok_emb.embedding.weight": TARGET,
    "positional_encoding.pos_embedding": POSITIONS,
    "generator.weight": HEAD,
    "generator.bias": HEAD_BIAS,
}

POSITION_NAME = re.compile(r"(?:^|[._])(?:pos(?!t)|w?pe(?:[._]|$))", re.IGNORECASE)
BY_SHAPE = "mapped by shape"


def place_outer(ledger: Ledger, d_model: int, has_decoder: bool) -> str:
    """Place the tensors outside the layers, and return the kind of model that they make (``ModelConfig.kind``).

    By shape, V rows and width d: a ``[V, d]`` with a ``[V]`` bias next to it is the output projection; a ``[V, d]``
    without a bias is an embedding, and if there is only one, it serves both sides; ``[1, L, d]``, ``[L, 1, d]``, or
    ``[L, d]`` with a name such as ``pos…`` or ``pe``, is the position table.

    Raises:
        CheckpointError: if there are two ways to place a tensor, or a tensor is missing.
    """
    place_known(ledger)
    place_positions(ledger, d_model)
    if any(name in ledger.placed for name in CLASSIFIER) and not has_decoder:
        place_classifier_embedding(ledger, d_model)
        return "classification"
    if not has_decoder:
        raise CheckpointError(
            "the checkpoint has an encoder and neither a decoder nor a classifier (classifier.0.…, classifier.2.…)",
            "an encoder alone is not supported yet",
        )
    pairs, lone = matrices(ledger, d_model)
    if not (pairs or lone or {SOURCE, TARGET, SHARED, HEAD} & ledger.placed.keys()):
        for ours in ({POSITIONS} - ledger.asked) & ledger.placed.keys():  # a model without tokens has no positions
            ledger.left[ledger.origins[ours]] = ledger.placed.pop(ours)
        return "transformer"
    place_head(ledger, pairs, lone)
    place_embeddings(ledger, lone)
    return "couplet" if SHARED in ledger.placed else "translation"


def place_known(ledger: Ledger) -> None:
    """Place the tensors whose names end with a known name."""
    for theirs in outer_names(ledger):
        segments = theirs.split(".")
        ours = next((KNOWN[end] for end in (".".join(segments[n:]) for n in range(len(segments))) if end in KNOWN), "")
        if ours and ours not in ledger.placed:
            ledger.place(ours, theirs, ledger.left[theirs])
            ledger.take(theirs)


def place_positions(ledger: Ledger, d_model: int) -> None:
    """Place the position table as ``[L, 1, d]``. Several equal tables count as one.

    Raises:
        CheckpointError: if two tables differ.
    """
    if POSITIONS in ledger.placed:
        ledger.placed[POSITIONS] = as_positions(ledger.placed[POSITIONS])
    for theirs in outer_names(ledger):
        tensor = ledger.left[theirs]
        named = POSITION_NAME.search(theirs) is not None
        thin = tensor.dim() == 3 and 1 in tensor.shape[:2] and (named or tensor.shape[:2].numel() > 1)
        if not (thin or (named and tensor.dim() == 2)) or tensor.shape[-1] != d_model or not tensor.is_floating_point():
            continue
        table = as_positions(tensor)
        if POSITIONS not in ledger.placed:
            ledger.place(POSITIONS, theirs, table)
            ledger.assume("positions", theirs, BY_SHAPE)
        elif not torch.equal(ledger.placed[POSITIONS], table):
            kept = ledger.origins[POSITIONS]
            raise CheckpointError(
                f"two position tables differ: {describe(kept, ledger.placed[POSITIONS])} and {describe(theirs, table)}",
                f"one serves both sides; if {theirs} is no such table: --key ignore={theirs}",
            )
        ledger.take(theirs)


def as_positions(tensor: Tensor) -> Tensor:
    """``[L, d]``, ``[1, L, d]`` or ``[L, 1, d]`` -> ``[L, 1, d]``. Tensors of other shapes stay as they are."""
    if tensor.dim() == 2:
        return tensor.unsqueeze(1)
    return tensor.transpose(0, 1) if tensor.dim() == 3 and tensor.size(0) == 1 else tensor


def outer_names(ledger: Ledger) -> list[str]:
    """The names of tensors without a place that belong to no layer."""
    return [name for name in ledger.left if not LAYER.match(name)]


def matrices(ledger: Ledger, d_model: int) -> tuple[list[str], list[str]]:
    """The names of all ``[V, d]`` without a place: those with a ``[V]`` bias next to them, and those without."""
    pairs: list[str] = []
    lone: list[str] = []
    for name in outer_names(ledger):
        tensor = ledger.left[name]
        weight = tensor.is_floating_point() or name.endswith("weight")  # weights of integers are refused later
        if tensor.dim() != 2 or tensor.size(1) != d_model or not weight:
            continue
        bias = ledger.left.get(bias_of(name))
        (lone if bias is None or bias.shape != tensor.shape[:1] else pairs).append(name)
    return pairs, lone


def bias_of(weight: str) -> str:
    """The name of the bias that belongs to ``weight``: ``generator.weight`` -> ``generator.bias``."""
    return weight.removesuffix("weight") + "bias" if weight.endswith("weight") else ""


def place_head(ledger: Ledger, pairs: list[str], lone: list[str]) -> None:
    """Place the output projection.

    Raises:
        CheckpointError: if there is none, or there are several, or it has no bias and ``--key`` does not name it.
    """
    if HEAD in ledger.placed:
        head = ledger.origins[HEAD]
        if HEAD_BIAS not in ledger.placed and HEAD not in ledger.asked:
            raise CheckpointError(
                f"{bias_of(head)} is missing beside {head}",
                f"if the projection has no bias: --key output_projection={head}",
            )
        if HEAD_BIAS not in ledger.placed:
            ledger.place(HEAD_BIAS, f"{head}, without a bias,", torch.zeros(ledger.placed[HEAD].shape[:1]))
            ledger.assume("output projection's bias", 0.0, "exact: the checkpoint has none")
        return
    if len(pairs) > 1:
        raise CheckpointError(
            f"any of {', '.join(describe(name, ledger.left[name]) for name in pairs)} could be the output projection",
            f"say which with --key output_projection={pairs[-1]}",
        )
    if not pairs:
        choices = lone + [ledger.origins[ours] for ours in (SOURCE, SHARED, TARGET) if ours in ledger.placed]
        raise CheckpointError(
            f"no output projection: there is no [V, d] with a [V] bias beside it, only {', '.join(choices)}",
            f"say which, it may be an embedding too: --key output_projection={lone[-1] if lone else choices[-1]}",
        )
    ledger.place(HEAD, pairs[0], ledger.left[pairs[0]])
    ledger.place(HEAD_BIAS, bias_of(pairs[0]), ledger.left[bias_of(pairs[0])])
    ledger.assume("output_projection", pairs[0], BY_SHAPE)
    ledger.take(pairs[0])
    ledger.take(bias_of(pairs[0]))


def place_embeddings(ledger: Ledger, lone: list[str]) -> None:
    """Place the embeddings of both sides, which are among ``lone``, or the one that serves both.

    Raises:
        CheckpointError: if there are two ways to place them, or no embedding.
    """
    head = ledger.origins[HEAD]
    tied = head if head in ledger.left else ""  # the projection by --key; it may be an embedding too
    lone = [name for name in lone if name in ledger.left and name != tied]
    source, target = SOURCE in ledger.placed, TARGET in ledger.placed
    if source and target and ledger.origins[SOURCE] == ledger.origins[TARGET]:
        serve_both(ledger, SOURCE)
    elif SHARED in ledger.placed or (source and target):
        pass  # tensors that remain in ``lone`` are reported as unexpected
    elif source and not lone:
        find_target(ledger, tied, named=SOURCE not in ledger.asked)
    elif target and not lone:
        if TARGET in ledger.asked:
            serve_both(ledger, TARGET)
    elif (source or target) and len(lone) == 1:
        place_by_shape(ledger, TARGET if source else SOURCE, lone[0])
    elif len(lone) == 2 and not (source or target):
        first, second = tell_apart(ledger, lone)
        place_by_shape(ledger, SOURCE, first)
        place_by_shape(ledger, TARGET, second)
    elif len(lone) > 1:
        raise two_readings(ledger, lone)
    elif lone or tied:
        place_by_shape(ledger, SOURCE, lone[0] if lone else tied)
        find_target(ledger, tied, named=False)
    else:
        raise CheckpointError(
            f"no embedding: there is no [V, d] besides {head}",
            f"if that serves as the embedding too: --key source_embedding={head}",
        )
    ledger.take(tied)


def find_target(ledger: Ledger, tied: str, named: bool) -> None:
    """Place the target's embedding if only the source's is there: it is the same, or the output projection's weight.

    Args:
        ledger: ledger in which the source's embedding is placed.
        tied: name of the output projection if it may be an embedding too; otherwise empty.
        named: whether the name of the source's embedding says that it is not the target's.

    Raises:
        CheckpointError: if both are possible.
    """
    source = ledger.origins[SOURCE]
    if tied and tied != source:
        if not named and ledger.placed[SOURCE].shape[:1] == ledger.placed[HEAD].shape[:1]:
            raise CheckpointError(
                f"the target's embedding could be {source}, or the output projection's {tied}",
                f"say which with --key target_embedding={source} or --key target_embedding={tied}",
            )
        place_by_shape(ledger, TARGET, tied)
    elif not named:
        serve_both(ledger, SOURCE)


def tell_apart(ledger: Ledger, lone: list[str]) -> tuple[str, str]:
    """Source and target of two embeddings: only the target's has as many rows as the output projection.

    Raises:
        CheckpointError: if both have as many rows, or neither has.
    """
    fits = [ledger.left[name].shape[:1] == ledger.placed[HEAD].shape[:1] for name in lone]
    if fits[0] == fits[1]:
        raise two_readings(ledger, lone)
    return (lone[1], lone[0]) if fits[0] else (lone[0], lone[1])


def two_readings(ledger: Ledger, lone: list[str]) -> CheckpointError:
    """The error for matrices that could be the embedding of either side."""
    shapes = " and ".join(describe(name, ledger.left[name]) for name in lone)
    if SOURCE in ledger.placed or TARGET in ledger.placed:
        role = "target" if SOURCE in ledger.placed else "source"
        return CheckpointError(
            f"either of {shapes} could be the {role} embedding", f"say which with --key {role}_embedding={lone[0]}"
        )
    return CheckpointError(
        f"{shapes} could be the source's and the target's embedding, or the target's and the source's",
        f"say which with --key source_embedding={lone[0]} --key target_embedding={lone[1]} (or the other way round)",
    )


def place_by_shape(ledger: Ledger, ours: str, theirs: str) -> None:
    """Place an embedding that is recognised by its shape alone, and record that."""
    role = next(role for role, name in ROLES.items() if name == ours)
    ledger.place(ours, theirs, ledger.left[theirs])
    ledger.assume(role, theirs, BY_SHAPE)
    ledger.take(theirs)


def serve_both(ledger: Ledger, ours: str) -> None:
    """Place the embedding at ``ours`` as the one that serves source and target.

    Raises:
        CheckpointError: if it has another number of rows than the output projection.
    """
    theirs, tensor = ledger.origins[ours], ledger.placed.pop(ours)
    head = ledger.placed.get(HEAD)
    if head is not None and head.shape[:1] != tensor.shape[:1]:
        other = describe(ledger.origins[HEAD], head)
        raise CheckpointError(
            f"{describe(theirs, tensor)} cannot serve both sides: {other} has other rows",
            "name the target's embedding with --key target_embedding=NAME",
        )
    ledger.placed.pop(TARGET, None)
    ledger.place(SHARED, theirs, tensor)
    recorded = {item.name for item in ledger.assumed}
    for role in ("source_embedding", "target_embedding"):
        if role not in recorded:
            ledger.assume(role, theirs, BY_SHAPE)


def place_classifier_embedding(ledger: Ledger, d_model: int) -> None:
    """Place the embedding of a classification model.

    Raises:
        CheckpointError: if several tensors could be the embedding.
    """
    if SHARED in ledger.placed:
        ledger.place(SOURCE, ledger.origins[SHARED], ledger.placed.pop(SHARED))
    if SOURCE in ledger.placed:
        return
    lone = matrices(ledger, d_model)[1]
    if len(lone) > 1:
        raise CheckpointError(
            f"any of {', '.join(describe(name, ledger.left[name]) for name in lone)} could be the embedding",
            f"say which with --key source_embedding={lone[0]}",
        )
    if lone:
        place_by_shape(ledger, SOURCE, lone[0])
