"""Contracts for ``translation.Seq2SeqTransformer``: the graphs with the masks that a deployer uses, and logits."""

from __future__ import annotations

from translation import LONGEST, SRC_VOCAB, TGT_VOCAB, WIDTH

from mytx.exporter.contracts import attention, graph, ids, padding, values

S, T, N = "source", "target", "batch"
MEMORY = values("memory", [S, N, WIDTH])

GRAPHS = [
    graph(
        "encoder",
        "encode",
        [ids("src", [S, N], SRC_VOCAB), attention("src_mask", [S, S])],
        [MEMORY],
        longest={S: LONGEST},
    ),
    graph(
        "decoder",
        "decode",
        [ids("tgt", [T, N], TGT_VOCAB, future="tgt_mask"), MEMORY, attention("tgt_mask", [T, T])],
        [values("hidden", [T, N, WIDTH])],
        longest={T: LONGEST},
    ),
    graph("generator", "generator", [values("input", [T, N, WIDTH])], [values("logits", [T, N, TGT_VOCAB])]),
    graph(
        "full",
        "forward",
        [
            ids("src", [S, N], SRC_VOCAB, hidden_by=("src_padding_mask", "memory_key_padding_mask")),
            ids("trg", [T, N], TGT_VOCAB, hidden_by="tgt_padding_mask", future="tgt_mask"),
            attention("src_mask", [S, S]),
            attention("tgt_mask", [T, T]),
            padding("src_padding_mask", [N, S]),
            padding("tgt_padding_mask", [N, T]),
            padding("memory_key_padding_mask", [N, S]),
        ],
        [values("logits", [T, N, TGT_VOCAB])],
        longest={S: LONGEST, T: LONGEST},
    ),
]
