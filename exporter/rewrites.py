"""What onnxruntime's optimiser does to a file: which rewrites change it, and what nodes it has then. No torch here."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import NodeProto

from .onnx_inner import subgraphs
from .runtimes import LEVELS, OnnxRuntime, RuntimeOptions

# The optimiser has no list of its rewrites, but its log says of each whether it changed the graph. The log goes to the
# stderr of the process, so it is that of another one.
_SCRIPT = """
import sys
import onnxruntime
path, level, *disabled = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
options.intra_op_num_threads = 1
options.log_severity_level = 1
onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled)
"""
_CHANGED = re.compile(r"GraphTransformer (\S+) modified: 1 ")

# Small rules run together, under one name in the log, and can be switched off one by one. These are all of onnxruntime
# 1.32; one that another version does not have changes nothing there.
TOGETHER = re.compile(r"Level\d+_RuleBasedTransformer")
RULES = (
    "EliminateIdentity",
    "EliminateSlice",
    "UnsqueezeElimination",
    "EliminateDropout",
    "ExpandElimination",
    "CastElimination",
    "CastChainElimination",
    "PreShapeNodeElimination",
    "NoopElimination",
    "DivMulFusion",
    "FuseReluClip",
    "GemmSumFusion",
    "GemmTransposeFusion",
    "NotWhereFusion",
    "ConvAddFusion",
    "ConvMulFusion",
    "ConvBNFusion",
    "PadFusion",
    "MatmulBNFusion",
    "LabelEncoderFusion",
    "ClipQuantFusion",
    "ReluQuantFusion",
)


def rewrites(path: Path, options: RuntimeOptions) -> tuple[str, ...]:
    """The rewrites that change the file at ``path``, in the order in which onnxruntime does them.

    None where its log cannot be read; where it cannot load the file, those up to there.

    Args:
        path: the file.
        options: level, and what is left out.
    """
    arguments = [str(path), LEVELS[options.level].name, *options.disabled_optimizers]
    done = subprocess.run(
        [sys.executable, "-P", "-c", _SCRIPT, *arguments], capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    return tuple(dict.fromkeys(_CHANGED.findall(done.stderr.decode(errors="replace"))))


def node_types(path: Path, options: RuntimeOptions) -> Counter[str] | None:
    """How many nodes of each type the file has when it is optimised, in loops too; None where that cannot be told."""
    with tempfile.TemporaryDirectory(prefix="mytx-") as folder:
        optimized = Path(folder) / "optimized.onnx"
        try:
            OnnxRuntime.open(path, options, optimized=optimized)
            model = onnx.load(optimized, load_external_data=False)
        except Exception:  # it cannot load the file, or there is no space: nothing is said of the nodes then
            return None
    return Counter(node.op_type for node in _nodes(model.graph.node))


def _nodes(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _nodes(graph.node)
