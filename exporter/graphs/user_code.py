"""``package.module:build``: a user's own code, and the checkpoint that goes into what it makes."""

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
FAILURES = (Exception, SystemExit)  # sys.exit in a user's code is no way for us to end


def make_module(place: str) -> nn.Module:
    """The module that ``package.module:build`` makes, or is, in float32 and evaluation mode, on the CPU.

    The current folder is looked in as well, as by ``python -m``.

    Raises:
        OptionError: where there is no such function, it fails, or gives something else.
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
            with _told(place, "it is called without arguments; -v shows the whole story"):
                found = found()
    if not isinstance(found, nn.Module):
        raise OptionError(f"{place} gave a {type(found).__name__}", "it must give a torch.nn.Module")
    check_float32(found)
    with users_code(), _told(f"{place}: eval() of the model", "mend it"):
        found.eval()
    return found


def check_float32(module: nn.Module) -> None:
    """Check that all weights of ``module`` are there, dense, in float32 and on the CPU, and that it is Python's own.

    Raises:
        OptionError: where they are not.
    """
    bases = {base.__module__ for part in module.modules() for base in type(part).__mro__}
    if any(name.startswith("torch.jit") for name in bases):
        raise OptionError(f"{type(module).__name__} is scripted", "give the module that it was made from")
    with _told("state_dict() of the model", "mend it"):
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
    """Put the tensors of ``checkpoint`` into ``module``: every one of them, and into every place.

    What wrappers add to names (``module.``, ``_orig_mod.``) is taken off; nothing in the file is executed. Buffers may
    hold what they like, such as a mask of -inf; parameters must be finite floats, for PyTorch would convert any other.

    Raises:
        CheckpointError: where it cannot be read, or holds other values than finite floats for a parameter.
        OptionError: where its tensors are not the module's.
    """
    state = module.state_dict()
    wanted = dict(zip(plain_names(state), state, strict=True))  # a module may itself have a part called "module"
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
    """The graphs in a contract: ``GRAPHS``, or what ``graphs(model)`` gives. The file is run.

    Raises:
        OptionError: where there are none.
    """
    if not path.is_file():
        raise OptionError(f"{path}: no such file", "check the path of the contract")
    path = path.absolute()
    with users_code():
        try:
            names = runpy.run_path(str(path))
            found = names["GRAPHS"] if "GRAPHS" in names else names["graphs"](module) if "graphs" in names else None
        except OptionError:  # of mytx.exporter.contracts, which says more
            raise
        except FAILURES as error:
            raise OptionError(
                f"{path} raised {type(error).__name__}: {first_line(error)}", "-v shows the whole story"
            ) from error
    graphs = found if isinstance(found, (list, tuple)) else []
    if not graphs or not all(isinstance(item, CustomGraph) for item in graphs):
        raise OptionError(f"{path} has no graphs", "set GRAPHS to a list made with mytx.exporter.contracts.graph")
    return list(graphs)


def signature_of(contract: Contract) -> str:
    """A contract in a line: ``src [source, batch], src_mask [source, source] -> memory [source, batch, 64]``."""

    def tensors(specs: Sequence[Any]) -> str:
        return ", ".join(f"{spec.name} [{', '.join(map(str, spec.labels))}]" for spec in specs)

    return f"{tensors(contract.inputs)} -> {tensors(contract.outputs)}"


def _import(name: str, place: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise OptionError(
                f"{place}: there is no module {error.name}", "run from the folder that it is in, or install it"
            ) from error
        raise OptionError(f"{place}: it imports {error.name}, which is not there", "install that") from error
    except FAILURES as error:
        raise OptionError(
            f"{place}: importing it raised {type(error).__name__}: {first_line(error)}", "-v shows the whole story"
        ) from error


@contextmanager
def _told(what: str, hint: str) -> Iterator[None]:
    """Say what a user's code raises within the block."""
    try:
        yield
    except FAILURES as error:
        raise OptionError(f"{what} raised {type(error).__name__}: {first_line(error)}", hint) from error


@contextmanager
def users_code() -> Iterator[None]:
    """What a user's own code may do to us, it does not do: print to stdout, which is for data, go to another folder, or
    change the default dtype. It finds modules in the current folder, as by ``python -m``.
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
