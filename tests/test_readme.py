"""The commands and the code in the README run, in its order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mytx.exporter.cli.main import cli
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.models import TranslationModel

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(sh setup|sh|python)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def blocks(kind: str) -> list[str]:
    return [text.strip() for found, text in BLOCKS if found == kind]


def run(command: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{command[-1]}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.slow
def test_the_commands_and_the_code_run_as_they_stand(tmp_path):
    torch.manual_seed(0)
    torch.save(TranslationModel(30, 20, 32, 4, 1, 1, 48).state_dict(), tmp_path / "model.pt")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    after_setup = blocks("sh setup")[0].partition("pip install . && ")[2]
    assert after_setup.startswith("mytx-export onnx -o demo-bundle")
    spelled = run(["bash", "-ec", after_setup], tmp_path).splitlines()
    assert spelled[-2:] == ["N AY1 T", "T R AE0 N S F AO1 R M ER0"]
    for text in blocks("sh"):
        run(["bash", "-ec", text], tmp_path)
    for text in blocks("python"):
        run([sys.executable, "-c", text], tmp_path)


def test_there_is_something_to_run():
    assert len(blocks("sh setup")) == 2
    assert len(blocks("sh")) == 9
    assert len(blocks("python")) == 6


def test_the_recipe_for_github_runs_the_commands_that_are_run_here():
    (recipe,) = re.findall(r"^```yaml\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    steps = re.findall(r"- run: (mytx-export .*)", recipe)
    assert len(steps) == 2
    assert "\n".join(steps) in blocks("sh")


def test_ci_runs_the_test_command_of_the_readme():
    command = blocks("sh setup")[1].rpartition("&&")[2].strip()
    assert command == "python -m pytest -n 2 --dist loadfile --no-loadscope-reorder"
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_torch_that_the_readme_installs_is_the_one_that_ci_tests():
    version = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert version is not None
    installs = [f"pip install torch=={version[1]} " in text for text in blocks("sh setup")]
    assert installs == [True, True]
    assert f"pip install --quiet torch=={version[1]}" in (ROOT / ".ci" / "run").read_text()
    assert torch.__version__.split("+")[0] == version[1]


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_has_a_place_in_the_readme(name):
    assert f"| `mytx-export {name} " in README


def test_the_table_of_graphs_says_what_the_contracts_say():
    graphs = graphs_of(TranslationModel(30, 20, 32, 4, 1, 1, 48))
    letters = {"batch": "N", "source": "S", "target": "T", "beams": "B", "length": "L", 32: "E", 20: "V", 1: "1"}
    caches = ("cross_", "past_", "present_")  # the table does not list them: there are two for each layer
    before: list[str] = []
    for name in ("encoder", "decoder", "full", "greedy", "generate", "prefill", "step"):
        contract = graphs[name].contract
        letters["hypotheses"] = "1" if name == "greedy" else "n"
        row = next(line for line in README.splitlines() if line.startswith(f"| `{name}.onnx` |"))
        _, _, inputs, outputs, _ = row.split("|")
        for cell, specs in ((inputs, contract.inputs), (outputs, contract.outputs)):
            same = before if "the same, and" in cell else []
            described = [
                found for found in re.findall(r"`(\w+)(?: \[([^]]*)\])?`", cell) if not found[0].startswith(caches)
            ]
            listed = {spec.name: spec for spec in specs if not spec.name.startswith(caches)}
            assert sorted([*same, *(found for found, _ in described)]) == sorted(listed)
            for found, axes in described:
                assert axes in ("", ", ".join(letters[label] for label in listed[found].labels))
        before = [spec.name for spec in contract.inputs]


def test_links_to_files_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
