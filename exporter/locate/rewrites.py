"""What onnxruntime's optimiser does to a file: the rewrites that change it, and the resulting nodes. No torch here."""

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

from ..formats.onnx.inner import subgraphs
from ..runtimes.onnxruntime import LEVELS, OnnxRuntime, RuntimeOptions

# The optimiser gives no list of its rewrites, but its log says for each whether it changed the graph. The log goes to
# the stderr of the process, so a child process loads the file.
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

# Small rules run as a group with one name in the log, and can be disabled one by one. These are all rules of
# onnxruntime 1.32. Disabling a rule that a version does not have changes nothing.
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
    """The rewrites that change the file at ``path``, in the order in which onnxruntime runs them.

    The result is empty if the log cannot be read. If onnxruntime cannot load the file, it has the rewrites until then.

    Args:
        path: an ONNX file.
        options: level of optimisation and disabled rewrites.
    """
    arguments = [str(path), LEVELS[options.level].name, *options.disabled_optimizers]
    done = subprocess.run(
        [sys.executable, "-P", "-c", _SCRIPT, *arguments], capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    return tuple(dict.fromkeys(_CHANGED.findall(done.stderr.decode(errors="replace"))))


def node_types(path: Path, options: RuntimeOptions) -> Counter[str] | None:
    """The number of nodes of each type in the optimised file, with those in loops; None if it is not known."""
    with tempfile.TemporaryDirectory(prefix="mytx-") as folder:
        optimized = Path(folder) / "optimized.onnx"
        try:
            OnnxRuntime.open(path, options, optimized=optimized)
            model = onnx.load(optimized, load_external_data=False)
        except Exception:  # the file cannot be loaded or the disk is full: nothing is said about nodes then
            return None
    return Counter(node.op_type for node in _nodes(model.graph.node))


def _nodes(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _nodes(graph.node)
