"""Building the model again from a bundle, to verify it with a plan or with new cases, and to locate faults."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ...models import Model, load_model
from ...models.build import empty_model, fill_model
from ...models.checkpoints.folder import CONFIG, read_config
from ...transformer import MyTransformer
from ..cases.case import Array
from ..contracts.contract import CUSTOM_KIND
from ..errors import BundleError, OptionError, first_line
from ..formats.onnx.storage import read_model, read_values
from ..formats.table import FORMATS
from ..graphs.exportable import Exportable, as_exportable, restore_custom_model
from ..graphs.model_graphs import masks_of
from ..graphs.user_code import load_weights, make_module
from ..parity.prove import contract_of_file
from .manifest import MODEL, Manifest, weights_sha256
from .open import Bundle

EXPORT_AGAIN = "export it again, from its checkpoint"


def rebuild(bundle: Bundle, factory: str | None = None) -> Exportable:
    """The model that ``bundle`` was made from, with the graphs that the bundle has.

    A bundle that failed contains the model itself. For any other, the weights come from its ONNX files, where they are
    equal to the model's bit for bit.

    Args:
        bundle: an open bundle.
        factory: ``package.module:build`` for a user's own model, whose code is not in the bundle; None for any other.

    Raises:
        BundleError: if the bundle lacks weights of its graphs, or has other weights than the model had.
        OptionError: if ``factory`` is missing or not needed, or makes another model.
    """
    manifest = bundle.manifest
    if (manifest.kind == CUSTOM_KIND) != (factory is not None):
        raise OptionError(
            f"{bundle.folder} holds {'one of the models of mytx' if factory else 'a model of your own'}",
            "leave out --model" if factory else "name the function that makes it: --model package.module:build",
        )
    if factory is not None:
        return _rebuild_custom(bundle, factory)
    if (bundle.folder / MODEL).is_dir():
        model = load_model(bundle.folder / MODEL)
    else:
        model = _from_files(bundle.folder, manifest)
    contracts = [entry.contract for entry in manifest.graphs.values()]
    exportable = as_exportable(model, masks_of(contracts) if isinstance(model, MyTransformer) else None)
    graphs = {name: graph for name, graph in exportable.graphs.items() if name in {item.graph for item in contracts}}
    for entry in manifest.graphs.values():
        if contract_of_file(FORMATS[entry.format], graphs[entry.contract.graph]) != entry.contract:
            raise BundleError(f"{entry.file} has a contract that this mytx does not make", EXPORT_AGAIN)
    return replace(exportable, graphs=graphs, assumed=manifest.assumed)


def _rebuild_custom(bundle: Bundle, factory: str) -> Exportable:
    module = make_module(factory)
    state = module.state_dict()
    saved = bundle.folder / MODEL
    if saved.is_dir():
        load_weights(module, saved / "model.safetensors", factory)
    else:
        found = _read_weights(bundle.folder, bundle.manifest, state)
        try:
            module.load_state_dict(
                {name: torch.from_numpy(array.copy()) for name, array in found.items()}, strict=False
            )
        except RuntimeError as error:
            raise OptionError(
                f"{factory} makes a model of other sizes than the one in {bundle.folder}",
                "name the function that the bundle was exported with",
            ) from error
        if set(found) == set(state):
            _check_weights(bundle.folder, bundle.manifest, found)
    contracts = [entry.contract for entry in bundle.manifest.of_format("onnx").values()]
    try:
        return restore_custom_model(module, bundle.config, contracts)
    except LookupError as error:
        raise BundleError(f"{bundle.folder / CONFIG} is damaged", EXPORT_AGAIN) from error


def _from_files(folder: Path, manifest: Manifest) -> Model:
    model = empty_model(read_config(folder / CONFIG))
    wanted = model.state_dict()
    found = _read_weights(folder, manifest, wanted)
    if set(found) == set(wanted):
        _check_weights(folder, manifest, found)
    missing = {name: torch.zeros(tensor.shape) for name, tensor in wanted.items() if name not in found}
    given = {name: torch.from_numpy(found.pop(name).copy()) for name in list(found)}
    try:
        return fill_model(model, missing | given)
    except RuntimeError as error:
        raise BundleError(f"the weights in {folder} do not fit its {CONFIG}", EXPORT_AGAIN) from error


def _read_weights(folder: Path, manifest: Manifest, wanted: Collection[str]) -> dict[str, Array]:
    """The weights with names in ``wanted`` that the ONNX files contain."""
    found: dict[str, Array] = {}
    for entry in manifest.of_format("onnx").values():
        path = folder / entry.file
        try:
            _, tensors = read_model(path)
            for tensor in tensors:
                if tensor.name in wanted and tensor.name not in found:
                    found[tensor.name] = read_values(tensor, path)
        except Exception as error:  # for example an offset behind the end of weights.bin
            raise BundleError(f"{path} cannot be read: {first_line(error)}", EXPORT_AGAIN) from error
    if not found:
        raise BundleError(f"{folder} holds no ONNX files in fp32 to read the weights from", EXPORT_AGAIN)
    return found


def _check_weights(folder: Path, manifest: Manifest, found: Mapping[str, Array]) -> None:
    if manifest.weights_sha256 is None:
        raise BundleError(f"the manifest of {folder} has no weights_sha256 to check the weights by", EXPORT_AGAIN)
    if weights_sha256(found) != manifest.weights_sha256:
        raise BundleError(f"the weights in {folder} are not those that it was made from", EXPORT_AGAIN)
