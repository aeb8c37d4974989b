"""Imports run one way: exporter -> models -> transformer, and inside exporter and models likewise."""

from __future__ import annotations

import ast
import graphlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ["transformer", "models", "exporter"]  # each may import those before it
FILES = {package: sorted((ROOT / package).glob("**/*.py")) for package in PACKAGES}

# Inside exporter: packages, and modules that stand beside them. Each may import those before it, never those behind it.
ROOMS = (
    "errors",
    "quiet",
    "memory",
    "contracts",
    "cases",
    "graphs",
    "search",
    "formats",
    "runtimes",
    "parity",
    "bundle",
    "task",
    "locate",
    "report",
    "decode",
    "pipeline",
    "quantizing",
    "verification",
    "testing",
    "cli",
)

# What must start without PyTorch: it runs where a bundle does.
WITHOUT_TORCH = [
    "bundle.generation",
    "bundle.inspection",
    "bundle.integrity",
    "bundle.manifest",
    "bundle.open",
    "bundle.staging",
    "bundle.typed",
    "cases.case",
    "cases.identities",
    "cases.masks",
    "cases.plan",
    "cases.search_plan",
    "cases.user_cases",
    "cli.located",
    "cli.terminal",
    "contracts",
    "contracts.contract",
    "contracts.declare",
    "decode.bench",
    "decode.lines",
    "decode.partial_output",
    "decode.text",
    "formats.onnx.shared_weights",
    "formats.table",
    "locate.optimizer",
    "locate.rewrites",
    "locate.scopes",
    "parity.compare",
    "parity.judge",
    "parity.onnx_weights",
    "parity.report",
    "parity.spread",
    "parity.stored",
    "parity.verify",
    "parity.weight_values",
    "parity.weights",
    "report.files",
    "report.junit",
    "report.page",
    "report.plots",
    "report.summary",
    "report.text",
    "runtimes.composed",
    "runtimes.lifting",
    "runtimes.onnx_reference",
    "runtimes.onnx_runs",
    "runtimes.onnxruntime",
    "runtimes.run",
    "runtimes.runtime",
    "verification",
]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(path: Path, tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Package and dotted name below it of everything of ours that a file imports: in functions and for types, too."""
    inside = ["mytx", *path.relative_to(ROOT).with_suffix("").parts[:-1]]
    for node in ast.walk(tree):
        names: list[list[str]] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [[*(node.module or "").split("."), alias.name] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) + 1 - node.level]
            names = [[*base, *(node.module.split(".") if node.module else []), alias.name] for alias in node.names]
        for name in names:
            if name[0] == "mytx":
                yield name[1], ".".join(name[2:])


def dotted(path: Path) -> str:
    """The name of a module below its package: ``parity.compare``; of a package its own: ``parity``."""
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in FILES["exporter"]}
MODELS = {dotted(path): path for path in FILES["models"]}


def modules_in(path: Path) -> set[str]:
    """The modules of its own package, exporter or models, that a file imports."""
    own = path.relative_to(ROOT).parts[0]
    known = {"exporter": MODULES, "models": MODELS}[own]
    found = {name for package, name in imported(path, parsed(path)) if package == own}
    return {name if name in known else name.rpartition(".")[0] for name in found}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    allowed = set(PACKAGES[: PACKAGES.index(package) + 1])
    seen = 0
    for path in FILES[package]:
        for other, module in imported(path, parsed(path)):
            assert other in allowed, f"{path.relative_to(ROOT)} imports {other}.{module}"
            seen += 1
    assert seen > 5


def test_every_package_of_the_exporter_has_a_place_in_the_order() -> None:
    assert set(ROOMS) == {name.partition(".")[0] for name in MODULES} - {""}


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_of_the_exporter_imports_only_those_before_it(room: str) -> None:
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for name, path in MODULES.items():
        if name.partition(".")[0] == room:
            for other in modules_in(path):
                assert other.partition(".")[0] in allowed, f"{name} imports {other}"


def test_no_model_file_imports_what_reads_checkpoints() -> None:
    readers = {name for name in MODELS if name.startswith("checkpoints")}
    assert len(readers) > 5
    for name in MODELS.keys() - readers - {""}:  # "" is the package itself, which has the names of all
        assert not modules_in(MODELS[name]) & {*readers, ""}, f"{name} imports what reads checkpoints"


@pytest.mark.parametrize("known", [MODULES, MODELS], ids=["exporter", "models"])
def test_no_modules_import_each_other(known: dict[str, Path]) -> None:
    imports = {name: modules_in(path) - {name, ""} for name, path in known.items() if name}
    assert len(list(graphlib.TopologicalSorter(imports).static_order())) == len(imports)  # raises for a cycle


@pytest.mark.parametrize(
    "folder",
    [
        *(f"exporter/{room}" for room in ROOMS if room in {path.parent.name for path in FILES["exporter"]}),
        "models/checkpoints",
    ],
)
def test_a_package_says_what_it_is_for_and_what_it_imports(folder: str) -> None:
    words = ast.get_docstring(parsed(ROOT / folder / "__init__.py")) or ""
    assert "mport" in words
    assert len(words.splitlines()) > 2


def exporter_uses(tree: ast.AST) -> Iterator[ast.AST]:
    """Where ``torch.onnx`` or ``torch.jit`` is named, by attribute or import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("onnx", "jit"):
            if isinstance(node.value, ast.Name) and node.value.id == "torch":
                yield node
        elif isinstance(node, ast.Import):
            if any(alias.name.startswith(("torch.onnx", "torch.jit")) for alias in node.names):
                yield node
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            if any(name.startswith(("torch.onnx", "torch.jit")) for name in names):
                yield node


def test_torchs_exporters_are_named_in_one_module_each() -> None:
    homes = {name for name, path in MODULES.items() if any(exporter_uses(parsed(path)))}
    assert homes == {"formats.onnx.export", "formats.onnx.translation", "formats.torchscript"}


@pytest.mark.parametrize("package", ["transformer", "models"])
def test_models_name_torchscript_only_to_mark_methods(package: str) -> None:
    for path in FILES[package]:
        tree = parsed(path)
        decorators = {
            id(decorator.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            for decorator in node.decorator_list
            if isinstance(decorator, ast.Attribute) and decorator.attr == "export"
        }
        elsewhere = [node for node in exporter_uses(tree) if id(node) not in decorators]
        assert elsewhere == [], path.name


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch.onnx.export()", 1),
        ("import torch.jit", 1),
        ("from torch import onnx", 1),
        ("from torch.onnx import export", 1),
        ("from torch.jit._script import x", 1),
        ("import torch, onnx\nonnx.load(torch.ones(1))", 0),
    ],
)
def test_the_search_for_torchs_exporters_finds_every_spelling(source: str, found: int) -> None:
    assert len(list(exporter_uses(ast.parse(source)))) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from ..models import Model", ("models", "Model")),
        ("from ..models.errors import MytxError", ("models", "errors.MytxError")),
        ("from .plan import Case", ("exporter", "plan.Case")),
        ("from . import plan", ("exporter", "plan")),
        ("import mytx.models.vocab", ("models", "vocab")),
        ("from mytx.transformer import MyTransformer", ("transformer", "MyTransformer")),
        ("def f():\n    from .cli import main", ("exporter", "cli.main")),
    ],
)
def test_the_search_for_imports_finds_every_spelling(source: str, found: tuple[str, str]) -> None:
    assert list(imported(ROOT / "exporter" / "any.py", ast.parse(source))) == [found]


# --- what starting costs ---------------------------------------------------------------------------------------------


def loaded_by(*modules: str) -> set[str]:
    """The top-level packages that are loaded after importing ``modules`` in a new Python."""
    code = f"import sys, {', '.join(modules)}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_command_line_starts_without_anything_heavy() -> None:
    loaded = loaded_by("mytx.exporter.cli.main")
    assert {"mytx", "click"} <= loaded
    assert not loaded & {"torch", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "numpy", "safetensors"}


def test_what_runs_and_verifies_a_bundle_starts_without_torch() -> None:
    loaded = loaded_by(*(f"mytx.exporter.{module}" for module in WITHOUT_TORCH))
    assert "onnxruntime" in loaded
    assert not loaded & {"torch", "onnxscript"}


@pytest.mark.parametrize("package", ["mytx.models", "mytx.exporter", "mytx.exporter.contracts"])
def test_every_public_name_can_be_imported(package: str) -> None:
    module = importlib.import_module(package)
    assert len(module.__all__) > 5
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
