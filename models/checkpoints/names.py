"""Names of tensors in mytx models, and patterns for names in checkpoints."""

from __future__ import annotations

import re

# Tensors outside the layers, as in the state dicts of the task models.
SOURCE = "src_token_embedding.embedding.weight"
TARGET = "tgt_token_embedding.embedding.weight"
SHARED = "token_embedding.embedding.weight"
POSITIONS = "pos_embedding.pe"
HEAD = "classification.weight"
HEAD_BIAS = "classification.bias"
CLASSIFIER = ("classifier.0.weight", "classifier.0.bias", "classifier.2.weight", "classifier.2.bias")
OUTER = (SOURCE, TARGET, SHARED, POSITIONS, HEAD, HEAD_BIAS, *CLASSIFIER)

#: The tensors outside the layers that each kind of model needs.
REQUIRED = {
    "transformer": (),
    "translation": (SOURCE, TARGET, HEAD, HEAD_BIAS),
    "couplet": (SHARED, HEAD, HEAD_BIAS),
    "classification": (SOURCE, *CLASSIFIER),
}

#: Their names for users, in ``--key ROLE=NAME`` and in assumptions.
ROLES = {"source_embedding": SOURCE, "target_embedding": TARGET, "output_projection": HEAD, "positions": POSITIONS}

#: Tensors in the stacks of a model, without the prefix ``my_transformer.`` of the sequence models.
STACK_NAME = re.compile(
    r"(encoder|decoder)\.(norm|layers\.\d+\.((self_attn|multihead_attn)\.(q|k|v|out)_proj|linear[12]|norm[123]))"
    r"\.(weight|bias)"
)

#: Tensors of a layer in a checkpoint, with any prefix.
LAYER = re.compile(r"(?P<outer>.*?)(?P<stack>encoder|decoder)\.layers\.(?P<index>\d+)\.(?P<rest>.+)")
