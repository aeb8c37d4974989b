"""Writing the block that introduces an error to a folder with a script: nodes, inputs and the expected output."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..bundle.staging import Staging
from ..cases.case import Array
from ..errors import BundleError, OptionError
from ..formats.onnx.storage import read_header, read_model, read_values
from ..parity.compare import EXACT, FACTOR
from ..runtimes.onnxruntime import OnnxRuntime
from .capture import difference
from .places import Block, Place

_SCRIPT = '''"""{about}"""

import sys
from pathlib import Path

import numpy as np
{import_line}

here = Path(__file__).parent
inputs, wanted = dict(np.load(here / "inputs.npz")), np.load(here / "expected.npz")
expected, allowed = wanted["expected"], float(wanted["allowed"])
{run_line}
if found.shape != expected.shape:
    sys.exit(f"shape {{found.shape}}, the model gives {{expected.shape}}")
same = (found == expected) | (np.isnan(found) & np.isnan(expected))
difference = np.where(same, 0.0, np.abs(np.subtract(found, expected, dtype=np.float64))).max(initial=0.0)
print(f"largest difference from the model {{difference:.3g}}, allowed {{allowed:.3g}}")
sys.exit(0 if difference <= allowed else 1)
'''
_FLOAT32 = (
    "import onnxruntime",
    'session = onnxruntime.InferenceSession(str(here / "block.onnx"), providers=["CPUExecutionProvider"])\n'
    "(found,) = session.run(None, inputs)",
)
_FLOAT64 = (
    "from mytx.exporter.runtimes.onnx_reference import OnnxReference",
    '(found,) = OnnxReference.open(here / "block.onnx", lifted=True).run(inputs).values()',
)


def write_reproduction(path: Path, place: Place, folder: Path) -> Path:
    """Write ``block.onnx``, ``inputs.npz``, ``expected.npz`` and ``reproduce.py`` for a place.

    The script needs numpy and onnxruntime, and exits with 1 if the block differs from the model. If float32 rounding
    hides the error, or onnxruntime cannot run the block, the script runs it in float64; then it needs mytx, too.

    Args:
        path: the ONNX file in which the place was found.
        place: a place that :func:`~mytx.exporter.locate.places.locate` found.
        folder: folder to make; it must not exist. It is written completely or not at all.

    Returns:
        The folder.

    Raises:
        BundleError: if the folder exists or cannot be written.
        OptionError: if a node failed at the place, so that there are no values to compare.
    """
    block = place.block
    if block is None:
        raise OptionError(f"{place.node} fails, so there are no values to compare", "run the graph itself")
    if os.path.lexists(folder):
        raise BundleError(f"{folder} exists", "choose another --output")
    with Staging(folder, bundle=False) as staging:
        target = staging.path / "block.onnx"
        model = _model(path, place.value, block)
        onnx.save(model, target)
        onnx.checker.check_model(str(target))
        given = {value.name: block.inputs[value.name] for value in model.graph.input}
        single = {name: _single(array) for name, array in given.items()}
        seen = _error(target, single, block) > FACTOR * block.allowance
        inputs, factor = (single, FACTOR) if seen else (given, EXACT)
        np.savez(staging.path / "inputs.npz", **inputs)  # type: ignore[arg-type]  # its stub takes no **arrays
        np.savez(staging.path / "expected.npz", expected=block.expected, allowed=np.float64(factor * block.allowance))
        import_line, run_line = _FLOAT32 if seen else _FLOAT64
        where = place.module or "the model's own code"
        about = f"{where}: {place.value} in {path.name}, {place.case}.\n\nRun: python reproduce.py\n"
        script = _SCRIPT.format(about=about, import_line=import_line, run_line=run_line)
        (staging.path / "reproduce.py").write_text(script, encoding="utf-8")
        return staging.commit()


def _error(path: Path, inputs: dict[str, Array], block: Block) -> float:
    """The largest error of the block in float32; 0 if onnxruntime cannot run it."""
    try:
        (found,) = OnnxRuntime.open(path).run(inputs).values()
    except Exception:  # onnxruntime raises its own classes
        return 0.0
    return difference(found, block.expected)


def _model(path: Path, value: str, block: Block) -> onnx.ModelProto:
    """The nodes of the block as an ONNX model: its inputs equal the model's values, its output ``value`` does not."""
    graph, tensors = read_model(path)
    nodes = [graph.node[number] for number in block.nodes if block.inputs.keys().isdisjoint(graph.node[number].output)]
    output = value
    if not nodes:  # the value is right, but it is passed to the wrong place
        output = f"{value}/handed_on"
        nodes = [helper.make_node("Identity", [value], [output], name="handed_on")]
    read = {name for node in nodes for name in node.input}
    model = onnx.ModelProto()
    model.CopyFrom(read_header(path))
    del model.metadata_props[:]
    model.graph.name = "block"
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(  # weights go into the file, without weights.bin
        numpy_helper.from_array(read_values(tensor, path), tensor.name)
        for tensor in tensors
        if tensor.name in read - block.inputs.keys()
    )
    model.graph.input.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(_single(array).dtype), array.shape)
        for name, array in block.inputs.items()
        if name in read
    )
    kind = helper.np_dtype_to_tensor_dtype(_single(block.expected).dtype)
    dims = [f"dim_{number}" for number in range(block.expected.ndim)]
    model.graph.output.append(helper.make_tensor_value_info(output, kind, dims))
    return model


def _single(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float64 else array
