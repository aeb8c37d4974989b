"""``assert_parity`` for your own tests: it verifies files as ``mytx-export`` does, and fails with the same messages."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from torch import Tensor, nn

from ..models import Model
from ..transformer import MyTransformer
from .bundle.open import open_bundle
from .cases.case import Array, Case
from .cases.identities import whole_plan
from .cases.user_cases import own_case
from .contracts.contract import CUSTOM_KIND, CUSTOM_LAYOUT, Axis, Contract, TensorSpec
from .contracts.declare import CustomGraph
from .errors import BundleError, OptionError
from .formats.onnx.storage import Weights, read_model, read_values
from .graphs.exportable import Exportable, as_exportable, custom_model, restore_custom_model
from .graphs.graph import Graph
from .graphs.model_graphs import masks_of
from .graphs.modules import GraphModule
from .graphs.running import evaluating, kept_buffers, run_model
from .graphs.user_code import check_float32
from .graphs.user_model import tensors_of
from .locate.places import explained
from .parity.prove import Request, prove
from .parity.reference import compute_references
from .parity.report import Finding, ParityReport
from .parity.verify import verify_file
from .parity.weight_values import compare_weights
from .quiet import quiet
from .report.text import print_findings, print_table, result_table
from .runtimes.onnx_runs import runs as onnx_runs
from .runtimes.onnxruntime import OnnxRuntime

Inputs = Mapping[str, Any]
WIDTH = 120  # width of the message, in characters
STANDARD = {"", "ai.onnx"}  # domains of standard operators


def assert_parity(
    exported: str | Path,
    module: nn.Module,
    contract: CustomGraph | Sequence[CustomGraph] | Inputs | Sequence[Inputs] | None = None,
    *,
    level: str = "standard",
) -> ParityReport:
    """Assert that the exported files compute what ``module`` computes, in every installed runtime.

    Args:
        exported: path of a bundle, or of an ``.onnx`` file from any exporter.
        module: the PyTorch module to compare with, in float32. Its training mode is restored afterwards.
        contract: for an ``.onnx`` file, its contract, made with :func:`mytx.exporter.contracts.graph`, from which the
            cases are made; or your own inputs: arrays or tensors by name, or a list of several such sets. For a bundle
            of one of mytx's models, None; for a bundle of your own model, its list of contracts, or None.
        level: number of test cases: ``quick``, ``standard`` or ``thorough``.

    Returns:
        The report; it has passed.

    Raises:
        AssertionError: if they differ. The message names file, runtime, case, output and element, and the error.
        MytxError: if they cannot be compared: the file is missing, or the contract or the inputs do not fit.
    """
    path = Path(exported)
    check_float32(module)
    with quiet(), evaluating(module), kept_buffers(module):
        report = (_bundle if path.is_dir() else _file)(path, module, contract, level)
    if not report.passed:
        raise AssertionError(message(report, path, type(module).__name__))
    return report


def message(report: ParityReport, path: Path, name: str) -> str:
    """The text of the AssertionError: the table and the findings, as ``mytx-export verify`` prints them."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False)
    console.print(f"{escape(str(path))} does not compute what {name} computes", soft_wrap=True)
    print_table(console, result_table(report.graphs))
    print_findings(console, report.graphs, rest="in the report")
    return out.getvalue().rstrip()


def _bundle(path: Path, module: nn.Module, contract: Any, level: str) -> ParityReport:
    bundle = open_bundle(path, allow_failed=True)
    entries = bundle.manifest.of_format("onnx")
    if not entries:
        raise BundleError(f"{path} holds no ONNX files", "mytx-export onnx makes some")
    contracts = {name: entry.contract for name, entry in entries.items()}
    if isinstance(module, Model):
        masks = masks_of(list(contracts.values())) if isinstance(module, MyTransformer) else None
        subject = as_exportable(module, masks)
    else:
        items = [contract] if isinstance(contract, CustomGraph) else list(contract or ())
        if bundle.manifest.kind != CUSTOM_KIND:
            raise OptionError(f"{path} holds one of mytx's models, not a {type(module).__name__}", "give that model")
        if items and not all(isinstance(item, CustomGraph) for item in items):
            raise OptionError("the argument is not a list of contracts", "make them with mytx.exporter.contracts.graph")
        # Without contracts, those in the bundle are used.
        subject = (
            custom_model(module, items) if items else restore_custom_model(module, bundle.config, [*contracts.values()])
        )
    for name, wanted in contracts.items():
        if name not in subject.graphs or subject.graphs[name].contract != wanted:
            raise OptionError(f"the contract of {name} in {path} is not the model's", "export it again")
    graphs = {name: subject.graphs[name] for name in contracts}
    with subject.tracing():
        report, _ = prove(subject.model, graphs, ["onnx"], path, Request(level))
        return explained(report, graphs, path)


def _file(path: Path, module: nn.Module, contract: Any, level: str) -> ParityReport:
    if not path.is_file():
        raise OptionError(f"{path}: no such file", "give a bundle's folder or an .onnx file")
    if isinstance(contract, (list, tuple)) and len(contract) == 1 and isinstance(contract[0], CustomGraph):
        contract = contract[0]
    if isinstance(contract, CustomGraph):
        subject = custom_model(module, [contract])
        graph = subject.graphs[contract.contract.graph]
        plan = whole_plan(graph.contract, level)
    else:
        sets = [contract] if isinstance(contract, Mapping) else list(contract or ())
        if not sets or not all(isinstance(item, Mapping) for item in sets):
            raise OptionError(f"nothing says what to run {path.name} on", "give a contract, or inputs by name")
        graph, plan = _by_inputs(path, module, sets)
        subject = Exportable(module, {graph.name: graph}, {}, custom=True)
    with subject.tracing():
        references = compute_references(module, graph, plan)
        runs = [replace(run, dimensions=isinstance(contract, CustomGraph)) for run in onnx_runs()]
        strange = sorted(_operator_domains(path) - STANDARD)
        if strange:  # onnx.reference does not know these operators
            runs = [run for run in runs if not run.runtime.startswith("onnx.reference")]
        reports = verify_file(path, graph.contract, plan, references, runs, format_name="onnx")
    if any(not report.passed for report in reports):
        found = tuple(_weights_that_differ(path, module))
        reports = [replace(report, findings=(*report.findings, *found)) for report in reports if not report.passed] + [
            report for report in reports if report.passed
        ]
    note = f"{path.name} in float64, because it has operators of {', '.join(strange)}" if strange else ""
    notes = (note,) if note else ()
    return ParityReport(tuple(replace(report, graph=path.stem, notes=(*report.notes, *notes)) for report in reports))


def _operator_domains(path: Path) -> set[str]:
    """The domains of the operators in a file; empty if the file cannot be read."""
    try:
        return {node.domain for node in Weights(path).graph.node}
    except Exception:  # the next one to open the file reports it
        return set()


def _weights_that_differ(path: Path, module: nn.Module) -> Iterator[Finding]:
    """Findings on weights that differ, for weights that the file holds under their state-dict names.

    This only helps to explain a failure. Other exporters may use other names.
    """
    state = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}
    try:
        _, tensors = read_model(path)
        found = {tensor.name: read_values(tensor, path) for tensor in tensors if tensor.name in state}
    except Exception:
        return
    for name, array in found.items():
        if array.shape == state[name].shape and array.dtype == state[name].dtype:
            for problem in compare_weights({name: array}, [name], {name: state[name]}):
                yield Finding("weights", problem)


def _by_inputs(path: Path, module: nn.Module, sets: Sequence[Inputs]) -> tuple[Graph, list[Case]]:
    """The graph of a file from any exporter, as the file describes it, and cases made from the user's inputs."""
    arrays = [{name: _array(value) for name, value in inputs.items()} for inputs in sets]
    try:
        described = OnnxRuntime.open(path).describe()
    except Exception as error:
        raise OptionError(f"{path} cannot be read: {' '.join(str(error).split())}", "is it an ONNX file?") from error
    for inputs in arrays:
        if set(inputs) != set(described.inputs):
            raise OptionError(
                f"{path.name} takes {', '.join(described.inputs)}, the inputs are {', '.join(inputs)}",
                "give an array by the name of each",
            )

    def specs(tensors: Mapping[str, tuple[str, tuple[str | int, ...]]]) -> tuple[TensorSpec, ...]:
        # A dimension without a name gets an axis of its own: it may have any size.
        return tuple(
            TensorSpec(
                name,
                dtype,
                tuple(
                    size if isinstance(size, int) and size > 0 else Axis(str(size) if size else f"{name}.{index}")
                    for index, size in enumerate(shape)
                ),
                role="",  # mask or values: only the user knows
            )
            for name, (dtype, shape) in tensors.items()
        )

    contract = Contract(path.stem, specs(described.inputs), specs(described.outputs), CUSTOM_LAYOUT)
    graph = Graph(contract, _Direct(module, set(described.inputs)), scopes=(), held=frozenset(module.state_dict()))
    cases = [own_case(f"inputs {number}", inputs, contract) for number, inputs in enumerate(arrays)]
    cases = [replace(case, name=f"{number:02d}", small=True) for number, case in enumerate(cases)]
    outputs = run_model(graph, cases[0].inputs)
    if len(outputs) != len(contract.outputs) or not all(isinstance(value, Tensor) for value in outputs):
        raise OptionError(
            f"{type(module).__name__} gives {len(outputs)} outputs, {path.name} {len(contract.outputs)}: "
            f"{', '.join(spec.name for spec in contract.outputs)}",
            "wrap the module so that it gives the same tensors",
        )
    return graph, cases


class _Direct(GraphModule):
    """Calls a module with the inputs of a file: by name if the module has arguments of these names, else in order."""

    def __init__(self, model: nn.Module, names: set[str]) -> None:
        super().__init__(model)
        self.by_name = names <= set(inspect.signature(model.forward).parameters)

    def forward(self, **inputs: Tensor) -> Any:
        """The outputs of the module."""
        return tensors_of(self.model(**inputs) if self.by_name else self.model(*inputs.values()))

    def arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs, unchanged."""
        return dict(inputs)


def _array(value: Any) -> Array:
    return np.asarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
