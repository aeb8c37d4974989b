"""Names of tensors: those that mytx gives them, and the patterns of names that checkpoints have."""

from __future__ import annotations

import re

# Outside the layers: the names of the task models' state dicts. The stacks are `encoder.…` and `decoder.…` here.
SOURCE = "src_token_embedding.embedding.weight"
TARGET = "tgt_token_embedding.embedding.weight"
SHARED = "token_embedding.embedding.weight"
POSITIONS = "pos_embedding.pe"
HEAD = "classification.weight"
HEAD_BIAS = "classification.bias"
CLASSIFIER = ("classifier.0.weight", "classifier.0.bias", "classifier.2.weight", "classifier.2.bias")
OUTER = (SOURCE, TARGET, SHARED, POSITIONS, HEAD, HEAD_BIAS, *CLASSIFIER)

#: What each kind of model has outside its layers and cannot do without.
REQUIRED = {
    "transformer": (),
    "translation": (SOURCE, TARGET, HEAD, HEAD_BIAS),
    "couplet": (SHARED, HEAD, HEAD_BIAS),
    "classification": (SOURCE, *CLASSIFIER),
}

#: What a person calls them: in ``--key ROLE=NAME`` and in what is recorded as assumed.
ROLES = {"source_embedding": SOURCE, "target_embedding": TARGET, "output_projection": HEAD, "positions": POSITIONS}

#: Names inside the stacks, without the ``my_transformer.`` that the sequence models put before them.
STACK_NAME = re.compile(
    r"(encoder|decoder)\.(norm|layers\.\d+\.((self_attn|multihead_attn)\.(q|k|v|out)_proj|linear[12]|norm[123]))"
    r"\.(weight|bias)"
)

#: A tensor of a layer in a checkpoint, with any prefix.
LAYER = re.compile(r"(?P<outer>.*?)(?P<stack>encoder|decoder)\.layers\.(?P<index>\d+)\.(?P<rest>.+)")
