"""A model's parameters and buffers by name; copies of a model without unused parts, or without tied parameters."""

from __future__ import annotations

import copy

from torch import Tensor, nn


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of ``model`` by all their names, including buffers that are not in the state dict."""
    parameters, buffers = (named(remove_duplicate=False) for named in (model.named_parameters, model.named_buffers))
    return {**dict(parameters), **dict(buffers)}


def multiplied(model: nn.Module) -> frozenset[str]:
    """The names of the weights that linear layers multiply by, including other names of the same memory."""
    weights = {module.weight.data_ptr() for module in model.modules() if isinstance(module, nn.Linear)}
    return frozenset(name for name, tensor in named_tensors(model).items() if tensor.data_ptr() in weights)


def pruned(model: nn.Module, scopes: tuple[str, ...], prefix: str = "") -> nn.Module:
    """A copy of ``model`` without the submodules outside of ``scopes``. It shares the parameters with ``model``.

    Args:
        model: any module; it is not changed.
        scopes: prefixes of state-dict names; empty keeps all.
        prefix: the prefix of names in ``model``, if it is itself a submodule.
    """
    if not scopes or prefix.startswith(scopes):
        return model
    kept = copy.copy(model)
    kept._modules = {
        name: child if child is None else pruned(child, scopes, f"{prefix}{name}.")
        for name, child in model._modules.items()
        if any(scope.startswith(f"{prefix}{name}.") or f"{prefix}{name}.".startswith(scope) for scope in scopes)
    }
    return kept


def untied(model: nn.Module) -> nn.Module:
    """A copy of ``model`` with a separate parameter for each name. If names share a parameter, tracing keeps only one.

    The new parameters share their memory with the old ones; ``model`` is not changed.
    """
    named = [parameter for _, parameter in model.named_parameters(remove_duplicate=False)]
    if len({id(parameter) for parameter in named}) == len(named):
        return model
    return _separate(model, set())


def _separate(module: nn.Module, seen: set[int]) -> nn.Module:
    twin = copy.copy(module)
    twin._parameters = dict(module._parameters)
    for name, parameter in module._parameters.items():
        if parameter is not None and id(parameter) in seen:
            twin._parameters[name] = nn.Parameter(parameter.detach(), parameter.requires_grad)
        seen.add(id(parameter))
    twin._modules = {name: child and _separate(child, seen) for name, child in module._modules.items()}
    return twin
