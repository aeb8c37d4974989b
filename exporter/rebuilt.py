"""The model of a bundle, rebuilt from it: for plans that are not stored with it, and to locate faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from ..models import Model, load_model
from ..models.build import empty_model, fill_model
from ..models.storage import CONFIG, read_config
from ..transformer import MyTransformer
from .errors import BundleError, first_line
from .formats import Format
from .graph import Graph
from .graphs import graphs_of, masks_of
from .manifest import MODEL, Manifest, weights_sha256
from .onnx_stream import read_model, read_values
from .opened import Bundle
from .own_cases import read_cases
from .plan import Array
from .proving import Request, contract_in, prove
from .quiet import quiet
from .report import ParityReport

EXPORT_AGAIN = "export it again, from its checkpoint"


def rebuild(bundle: Bundle) -> tuple[Model, dict[str, Graph]]:
    """The model that ``bundle`` was made from, and those of its graphs that the bundle has.

    A bundle that failed holds the model itself; of another the weights in its ONNX files are the model's bit for bit.

    Raises:
        BundleError: where the bundle does not hold all weights of its graphs, or others than it was made from.
    """
    manifest = bundle.manifest
    if (bundle.folder / MODEL).is_dir():
        model = load_model(bundle.folder / MODEL)
    else:
        model = _from_files(bundle.folder, manifest)
    contracts = [entry.contract for entry in manifest.graphs.values()]
    masks = masks_of(contracts) if isinstance(model, MyTransformer) else None
    available = graphs_of(model, masks)
    graphs = {name: graph for name, graph in available.items() if name in {item.graph for item in contracts}}
    return model, graphs


def verify_rebuilt(
    bundle: Bundle,
    formats: Sequence[Format],
    level: str,
    own: Sequence[Path | str],
    verbose: bool,
    progress: Callable[[str], None],
) -> ParityReport:
    """Verify the files of ``bundle`` against references that are computed anew.

    Args:
        bundle: open.
        formats: which of its files.
        level: of the plan.
        own: files with a user's own cases.
        verbose: let the runtimes' own messages through.
        progress: told what is being done.

    Raises:
        BundleError: as :func:`rebuild`, and where the graphs are not those that this version makes.
        OptionError: for a case that fits no graph.
    """
    with quiet(verbose):
        progress("Rebuilding the model")
        model, graphs = rebuild(bundle)
        for known in formats:
            for name, entry in bundle.manifest.of_format(known.name).items():
                if contract_in(known, graphs[name]) != entry.contract:
                    raise BundleError(f"{entry.file} has a contract that this mytx does not make", EXPORT_AGAIN)
        request = Request(level, read_cases(own, [graph.contract for graph in graphs.values()]), verbose)
        names = [known.name for known in formats]
        report, _ = prove(
            model, graphs, names, bundle.folder, request, timed=lambda stage: nullcontext(), progress=progress
        )
    return report


def _from_files(folder: Path, manifest: Manifest) -> Model:
    model = empty_model(read_config(folder / CONFIG))
    wanted = model.state_dict()
    found: dict[str, Array] = {}
    for entry in manifest.of_format("onnx").values():
        path = folder / entry.file
        try:
            _, tensors = read_model(path)
            for tensor in tensors:
                if tensor.name in wanted and tensor.name not in found:
                    found[tensor.name] = read_values(tensor, path)
        except Exception as error:  # a place in weights.bin that it does not have, say
            raise BundleError(f"{path} cannot be read: {first_line(error)}", EXPORT_AGAIN) from error
    if not found:
        raise BundleError(f"{folder} holds no ONNX files to read the weights from", EXPORT_AGAIN)
    if set(found) == set(wanted) and weights_sha256(found) != manifest.model["weights_sha256"]:
        raise BundleError(f"the weights in {folder} are not those that it was made from", EXPORT_AGAIN)
    missing = {name: torch.zeros(tensor.shape) for name, tensor in wanted.items() if name not in found}
    given = {name: torch.from_numpy(found.pop(name).copy()) for name in list(found)}
    try:
        return fill_model(model, missing | given)
    except RuntimeError as error:
        raise BundleError(f"the weights in {folder} do not fit its {CONFIG}", EXPORT_AGAIN) from error
