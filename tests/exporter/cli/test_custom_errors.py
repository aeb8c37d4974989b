"""Errors of a user's own model: one or two lines, exit code 2, and no files left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from custom_support import QUICK, run, strange
from mytx.exporter.errors import MytxError
from mytx.exporter.graphs.user_code import load_weights, make_module

pytestmark = pytest.mark.usefixtures("inside_example")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "strange", "'strange' names no function"),
        ("", "missing_module:build", "there is no module missing_module"),
        ("import missing_too\n", "strange:build", "it imports missing_too, which is not there"),
        ("1 / 0\n", "strange:build", "importing it raised ZeroDivisionError: division by zero"),
        ("x = 3\n", "strange:build", "strange has no build"),
        ("x = 3\n", "strange:x", "strange:x is a int"),
        ("def build(): raise ValueError('no GPU')\n", "strange:build", "strange:build raised ValueError: no GPU"),
        ("def build(size): pass\n", "strange:build", "strange:build raised TypeError"),
        ("def build(): return 3\n", "strange:build", "strange:build gave a int"),
        (
            "import torch\ndef build(): return torch.nn.Linear(2, 2).half()\n",
            "strange:build",
            "weight is float16 on cpu, not float32 on the CPU",
        ),
    ],
)
def test_a_factory_that_gives_no_model_is_refused(example_folder: Path, text: str, place: str, words: str):
    strange(example_folder, text)
    result = run("onnx", "--model", place, "-o", "never")
    assert result.code == 2
    assert words in result.err
    assert "Traceback" not in result.err
    assert len(result.err.strip().splitlines()) <= 2
    assert not (example_folder / "never").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such file"),
        ("x = 1\n", "has no graphs"),
        ("GRAPHS = [3]\n", "has no graphs"),
        ("GRAPHS = []\n", "has no graphs"),
        ("def graphs(model): return model.sizes\n", "raised AttributeError"),
        ("1 / 0\n", "raised ZeroDivisionError"),
        ("syntax error\n", "raised SyntaxError"),
        ("from contract import GRAPHS\nGRAPHS = GRAPHS + GRAPHS\n", "two graphs are called decoder"),
    ],
)
def test_a_file_that_is_no_contract_is_refused(example_folder: Path, text: str | None, words: str):
    path = example_folder / "other.py"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    result = run("onnx", "model.pt", "--model", "translation:build", "--contract", "other.py", "-o", "never")
    assert result.code == 2
    assert words in result.err
    assert len(result.err.strip().splitlines()) <= 2
    assert not (example_folder / "never").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["model.pt", "--contract", "contract.py"], "--contract is for --model"),
        (
            ["model.pt", "--model", "translation:build", "--reference", "translation:build"],
            "--model is itself the reference",
        ),
        (["--reference", "translation:build"], "--reference needs a CHECKPOINT"),
        (["model.pt", "--nhead", "4", "--model", "translation:build"], "--nhead is for checkpoints without --model"),
        (["model.pt", "--model", "translation:build", "--masks", "src_mask"], "--masks is for a bare MyTransformer"),
        (["model.pt", "--model", "translation:build", "--jobs", "2"], "a graph after the other"),
        (["model.pt", "--model", "translation:build", "--component", "decode"], "this model has no decode graph"),
        (["model.pt", "--checkpoint", "model.pt", "--model", "translation:build"], "give one"),
        (["contract.py", "--model", "translation:build"], "contract.py is not a PyTorch checkpoint"),
        (["missing.pt", "--model", "translation:build"], "missing.pt: no such file"),
        (["model.pt", "--nhead", "4", "--reference", "translation:build", "--no-verify"], "exclude each other"),
    ],
)
def test_options_that_do_not_go_together_are_refused(example_folder: Path, command: list[str], words: str):
    result = run("onnx", *command, "-o", "never")
    assert result.code == 2
    assert words in result.err
    assert not (example_folder / "never").exists()


@pytest.mark.parametrize("command", ["torchscript", "pt2", "all"])
def test_other_formats_are_refused(example_folder: Path, command: str):
    result = run(command, "model.pt", "--model", "translation:build", "-o", "never")
    assert result.code == 2
    assert "a model of your own becomes ONNX" in result.err


def test_weights_of_another_model_are_refused(example_folder: Path, tmp_path: Path):
    module = make_module("translation:build")
    state = module.state_dict()
    torch.save({**state, "extra": torch.zeros(1)}, tmp_path / "more.pt")
    torch.save({**state, "generator.bias": torch.zeros(7)}, tmp_path / "shape.pt")
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "wrapped.pt")
    with pytest.raises(MytxError, match="has 1 tensor: extra too many"):
        load_weights(module, tmp_path / "more.pt", "translation:build")
    with pytest.raises(MytxError, match=r"generator.bias is \[7\] in .*, \[90\] in translation:build"):
        load_weights(module, tmp_path / "shape.pt", "translation:build")
    load_weights(module, tmp_path / "wrapped.pt", "translation:build")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys\nsys.exit(5)\n", "importing it raised SystemExit"),
        ("import sys\ndef build(): sys.exit(0)\n", "strange:build raised SystemExit"),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--no'])\n", "importing it raised SystemExit"),
    ],
)
def test_code_that_ends_the_program_does_not_end_it_well(example_folder: Path, text: str, words: str):
    strange(example_folder, text)
    for command in (["onnx", "--model", "strange:build", "-o", "never"],):
        result = run(*command)
        assert (result.code, words in result.err) == (2, True), result
    assert not (example_folder / "never").exists()


def test_an_eval_that_fails_is_the_models_and_what_it_gives_is_not_used(example_folder: Path):
    module = "import torch\nclass Own(torch.nn.Linear):\n    def eval(self): {}\ndef build(): return Own(2, 2)\n"
    strange(example_folder, module.format("raise RuntimeError('no')"))
    with pytest.raises(MytxError, match=r"eval\(\) of the model raised RuntimeError: no"):
        make_module("strange:build")
    strange(example_folder, module.format("return None"))
    assert type(make_module("strange:build")).__name__ == "Own"


def test_what_a_factory_does_to_the_process_stays_with_it(example_folder: Path, tmp_path: Path):
    strange(
        example_folder,
        "import os, torch\n"
        "def build():\n"
        f"    os.chdir({str(tmp_path)!r})\n"
        "    print('hello')\n"
        "    torch.set_default_dtype(torch.float64)\n"
        "    return torch.nn.Linear(4, 4).float()\n",
    )
    (example_folder / "linear.py").write_text(
        "from mytx.exporter.contracts import graph, values\n"
        "GRAPHS = [graph('full', 'forward', [values('input', ['batch', 'source', 4])],"
        " [values('output', ['batch', 'source', 4])])]\n"
    )
    result = run("onnx", "--model", "strange:build", "--contract", "linear.py", "-o", "here", *QUICK, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["passed"] is True
    assert "hello" in result.err
    assert (example_folder / "here" / "full.onnx").is_file()
    assert not list(tmp_path.iterdir())
    assert torch.get_default_dtype() == torch.float32


def test_a_model_of_other_sizes_is_not_the_bundles(example_bundle: Path, example_folder: Path):
    strange(example_folder, "import translation\ntranslation.WIDTH = 32\nbuild = translation.build\n")
    result = run("verify", str(example_bundle), *QUICK, "--model", "strange:build")
    assert (result.code, "strange:build makes a model of other sizes" in result.err) == (2, True), result
