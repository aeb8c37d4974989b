"""Importing and calling a user's own code (``package.module:build``), and loading a checkpoint into its model."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...models.checkpoints.files import read_file
from ...models.checkpoints.ledger import listed
from ...models.checkpoints.state_dict import plain_names, unwrap
from ...models.checkpoints.values import bad_weights
from ..contracts.contract import Contract
from ..contracts.declare import CustomGraph
from ..errors import CheckpointError, OptionError, first_line
from .parameters import named_tensors

PLACE = re.compile(r"(?P<module>[\w.]+):(?P<name>[\w.]+)")
FAILURES = (Exception, SystemExit)  # sys.exit in the user's code must not end this program


def make_module(place: str) -> nn.Module:
    """The module that ``package.module:build`` returns, or is, in float32 and evaluation mode, on the CPU.

    Modules are also found in the current folder, as with ``python -m``.

    Raises:
        OptionError: if there is no such function, if it fails, or if it returns anything else.
    """
    match = PLACE.fullmatch(place)
    if match is None:
        raise OptionError(f"{place!r} names no function", "write package.module:build")
    with users_code():
        found: Any = _import(match["module"], place)
        for name in match["name"].split("."):
            if not hasattr(found, name):
                raise OptionError(f"{match['module']} has no {match['name']}", "check the name after the colon")
            found = getattr(found, name)
        if not isinstance(found, nn.Module):
            if not callable(found):
                raise OptionError(f"{place} is a {type(found).__name__}", "name a function that makes the model")
            with _explained(place, "it is called without arguments; -v shows the traceback"):
                found = found()
    if not isinstance(found, nn.Module):
        raise OptionError(f"{place} gave a {type(found).__name__}", "it must give a torch.nn.Module")
    check_float32(found)
    with users_code(), _explained(f"{place}: eval() of the model", "correct it"):
        found.eval()
    return found


def check_float32(module: nn.Module) -> None:
    """Check that ``module`` is not scripted, and that its weights are dense, in float32 and on the CPU.

    Raises:
        OptionError: if it is not.
    """
    bases = {base.__module__ for part in module.modules() for base in type(part).__mro__}
    if any(name.startswith("torch.jit") for name in bases):
        raise OptionError(f"{type(module).__name__} is scripted", "give the module that it was made from")
    with _explained("state_dict() of the model", "correct it"):
        state = module.state_dict()
    if strange := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise OptionError(
            f"{strange[0]} of {type(module).__name__} is a {type(state[strange[0]]).__name__}, not a tensor",
            "give the model in float32: one that is quantized cannot be exported",
        )
    for name, tensor in named_tensors(module).items():
        if is_lazy(tensor):
            raise OptionError(f"{name} has no shape yet", "run a lazy module once before it is given here")
        if tensor.layout != torch.strided:
            raise OptionError(f"{name} is {tensor.layout}".replace("torch.", ""), "call .to_dense() on it")
        floats = tensor.is_floating_point() or tensor.is_complex()
        if (floats and tensor.dtype != torch.float32) or tensor.device.type != "cpu":
            where = f"{tensor.dtype} on {tensor.device}".removeprefix("torch.")
            raise OptionError(f"{name} is {where}, not float32 on the CPU", "call .float().cpu() on the model")


def load_weights(module: nn.Module, checkpoint: Path, place: str) -> None:
    """Load the tensors of ``checkpoint`` into ``module``. Their names must be exactly those of its state dict.

    Prefixes that wrappers add to names (``module.``, ``_orig_mod.``) are removed. No code in the file is executed.
    Buffers may hold any values, such as a mask of -inf. Parameters must be finite floats: PyTorch would convert
    anything else.

    Raises:
        CheckpointError: if it cannot be read, or a parameter is not of finite floats.
        OptionError: if names or shapes differ from the module's.
    """
    state = module.state_dict()
    wanted = dict(zip(plain_names(state), state, strict=True))  # the model itself may have a submodule called "module"
    found = unwrap(read_file(checkpoint)).tensors
    missing, surplus = [name for name in wanted if name not in found], [name for name in found if name not in wanted]
    if missing or surplus:
        parts = [f"lacks {listed(missing, 'tensor')}"] if missing else []
        parts += [f"has {listed(surplus, 'tensor')} too many"] if surplus else []
        raise OptionError(f"{checkpoint} is not of {place}: it {' and '.join(parts)}", "is it the model's state dict?")
    for name, ours in wanted.items():
        if found[name].shape != state[ours].shape:
            shapes = f"{list(found[name].shape)} in {checkpoint}, {list(state[ours].shape)} in {place}"
            raise OptionError(f"{name} is {shapes}", "build the model with the sizes that it was trained with")
    parameters = dict(module.named_parameters(remove_duplicate=False))
    floats = [name for name, ours in wanted.items() if ours in parameters and parameters[ours].is_floating_point()]
    if bad := bad_weights({name: found[name] for name in floats}):
        reasons = listed([f"{item.tensor} ({item.reason})" for item in bad], "weight")
        raise CheckpointError(f"{checkpoint} cannot be exported: {reasons}", bad[0].hint)
    module.load_state_dict({wanted[name]: tensor for name, tensor in found.items()})


def read_contract(path: Path, module: nn.Module) -> list[CustomGraph]:
    """The graphs in a contract file: its list ``GRAPHS``, or the result of its ``graphs(model)``. The file is executed.

    Raises:
        OptionError: if the file fails, or has no graphs.
    """
    if not path.is_file():
        raise OptionError(f"{path}: no such file", "check the path of the contract")
    path = path.absolute()
    with users_code():
        try:
            names = runpy.run_path(str(path))
            found = names["GRAPHS"] if "GRAPHS" in names else names["graphs"](module) if "graphs" in names else None
        except OptionError:  # raised by mytx.exporter.contracts: its message is better than ours
            raise
        except FAILURES as error:
            raise OptionError(
                f"{path} raised {type(error).__name__}: {first_line(error)}", "-v shows the traceback"
            ) from error
    graphs = found if isinstance(found, (list, tuple)) else []
    if not graphs or not all(isinstance(item, CustomGraph) for item in graphs):
        raise OptionError(f"{path} has no graphs", "set GRAPHS to a list made with mytx.exporter.contracts.graph")
    return list(graphs)


def signature_of(contract: Contract) -> str:
    """A contract in one line: ``src [source, batch], src_mask [source, source] -> memory [source, batch, 64]``."""

    def tensors(specs: Sequence[Any]) -> str:
        return ", ".join(f"{spec.name} [{', '.join(map(str, spec.labels))}]" for spec in specs)

    return f"{tensors(contract.inputs)} -> {tensors(contract.outputs)}"


def _import(name: str, place: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise OptionError(
                f"{place}: there is no module {error.name}", "run this in the module's folder, or install it"
            ) from error
        raise OptionError(f"{place}: it imports {error.name}, which is not there", "install that") from error
    except FAILURES as error:
        raise OptionError(
            f"{place}: importing it raised {type(error).__name__}: {first_line(error)}", "-v shows the traceback"
        ) from error


@contextmanager
def _explained(what: str, hint: str) -> Iterator[None]:
    """Turns an error that the user's code raises inside the block into an ``OptionError`` that begins with ``what``."""
    try:
        yield
    except FAILURES as error:
        raise OptionError(f"{what} raised {type(error).__name__}: {first_line(error)}", hint) from error


@contextmanager
def users_code() -> Iterator[None]:
    """Runs a user's own code. Inside the block, stdout goes to stderr (stdout is for data), and imports also look in
    the current folder, as with ``python -m``. Afterwards the current folder and the default dtype are restored.
    """
    here, dtype = Path.cwd(), torch.get_default_dtype()
    sys.path.insert(0, str(here))
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.chdir(here)
        torch.set_default_dtype(dtype)
        if str(here) in sys.path:
            sys.path.remove(str(here))
