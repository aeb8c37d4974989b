"""Imports run one way: exporter -> models -> transformer, and inside exporter from the command line downwards."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ["transformer", "models", "exporter"]  # each may import those before it
FILES = {package: sorted((ROOT / package).glob("**/*.py")) for package in PACKAGES}

# Inside exporter: a module may import those of a lower rank. A new module takes its place here.
RANKS = [
    {
        "contracts.contract",
        "errors",
        "locate.scopes",
        "graphs.modules",
        "memory",
        "search.nodes",
        "cli.options",
        "graphs.precision",
        "formats.program_text",
        "quiet",
        "parity.report",
        "parity.spread",
        "bundle.typed",
        "bundle.versions",
    },
    {
        "formats.table",
        "graphs.graph",
        "decode.lines",
        "search.rounds",
        "cases.masks",
        "formats.onnx.shared_weights",
        "formats.torch_archive",
    },
    {"contracts.declare", "cli.output", "cases.plan"},
    {
        "parity.compare",
        "graphs.decode_graphs",
        "graphs.user_code",
        "report.junit",
        "parity.lending",
        "runtimes.lifting",
        "search.loops",
        "formats.onnx.stream",
        "formats.program",
        "runtimes.runtime",
        "cases.search_plan",
    },
    {
        "bundle.generation",
        "graphs.model_graphs",
        "cases.identities",
        "parity.judge",
        "bundle.manifest",
        "graphs.running",
        "formats.onnx.export",
        "runtimes.onnx_reference",
        "cases.user_cases",
        "report.plots",
        "locate.rewrites",
        "parity.stored",
        "parity.weights",
    },
    {"graphs.user_model"},
    {"runtimes.eager", "report.page", "parity.reference", "graphs.exportable", "graphs.inferred", "parity.verify"},
    {
        "bundle.staging",
        "locate.capture",
        "runtimes.onnx_checks",
        "formats.onnx.compose",
        "locate.optimizer",
        "parity.original",
        "parity.search_reference",
        "runtimes.torch_file",
    },
    {
        "bundle.writing",
        "locate.matching",
        "formats.onnx.files",
        "bundle.open",
        "decode.partial_output",
        "formats.pt2",
        "report.files",
        "formats.torchscript",
    },
    {"decode.text", "locate.places"},
    {"parity.prove", "locate.reproduction"},
    {"pipeline", "bundle.rebuild"},
    {"decode.bench_torch", "verification", "bundle.inspection", "locate.bundle"},
    {"decode.bench"},
    {"cli.terminal"},
    {"cli.located", "testing"},
    {"cli.bench", "cli.bundle", "cli.export", "cli.run"},
    {"cli.main"},
]
RANK = {module: rank for rank, modules in enumerate(RANKS) for module in modules}

# What must start without PyTorch: it runs where a bundle does.
WITHOUT_TORCH = [
    "decode.bench",
    "bundle.staging",
    "verification",
    "parity.compare",
    "contracts.contract",
    "contracts.declare",
    "decode.text",
    "locate.scopes",
    "formats.table",
    "bundle.generation",
    "cases.identities",
    "parity.judge",
    "report.junit",
    "runtimes.lifting",
    "decode.lines",
    "bundle.manifest",
    "runtimes.onnx_checks",
    "runtimes.onnx_reference",
    "cases.masks",
    "bundle.open",
    "locate.optimizer",
    "cases.user_cases",
    "report.page",
    "report.plots",
    "decode.partial_output",
    "cases.plan",
    "parity.report",
    "locate.rewrites",
    "report.files",
    "runtimes.runtime",
    "formats.onnx.shared_weights",
    "parity.spread",
    "parity.stored",
    "cli.terminal",
    "cli.located",
    "bundle.typed",
    "parity.verify",
    "parity.weights",
]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(path: Path, tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Package and module of everything of ours that a file imports, in functions too."""
    inside = [path.relative_to(ROOT).parts[0], *path.relative_to(ROOT).with_suffix("").parts[1:-1]]
    for node in ast.walk(tree):
        names: list[list[str]] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [[*(node.module or "").split("."), alias.name] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["mytx", *inside][: len(inside) + 2 - node.level]
            names = [[*base, *(node.module.split(".") if node.module else []), alias.name] for alias in node.names]
        for name in names:
            if name[0] == "mytx":
                yield name[1], name[2] if len(name) > 2 else ""


def without_annotations(tree: ast.Module) -> ast.Module:
    """The module without what is imported for type checkers only."""
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    return tree


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    allowed = set(PACKAGES[: PACKAGES.index(package) + 1])
    seen = 0
    for path in FILES[package]:
        for other, module in imported(path, parsed(path)):
            assert other in allowed, f"{path.relative_to(ROOT)} imports {other}.{module}"
            seen += 1
    assert seen > 5


def test_every_module_of_the_exporter_has_a_rank() -> None:
    assert sum(len(modules) for modules in RANKS) == len(RANK)
    assert set(RANK) == {path.stem for path in FILES["exporter"]} - {"__init__"}


@pytest.mark.parametrize("path", FILES["exporter"], ids=lambda path: path.stem)
def test_a_module_of_the_exporter_imports_only_lower_ranks(path: Path) -> None:
    if path.stem == "__init__":
        return
    for package, module in imported(path, without_annotations(parsed(path))):
        if package == "exporter":
            assert RANK[module] < RANK[path.stem], f"{path.stem} imports {module}"


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
    homes = {path.stem for path in FILES["exporter"] if any(exporter_uses(parsed(path)))}
    assert "onnx_format" in homes
    assert homes <= {"onnx_format", "torchscript_format"}


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
        ("from ..models.errors import MytxError", ("models", "errors")),
        ("from .plan import Case", ("exporter", "plan")),
        ("from . import plan", ("exporter", "plan")),
        ("import mytx.models.vocab", ("models", "vocab")),
        ("from mytx.transformer import MyTransformer", ("transformer", "MyTransformer")),
        ("def f():\n    from .cli import main", ("exporter", "cli")),
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
