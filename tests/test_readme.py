"""The documentation: commands and code in the README and in ``docs/`` run; tables, links and lengths are right."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from documents import FENCED, PAGES, blocks, first_command, run, texts
from mytx.exporter.cli.main import cli
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.models import TranslationModel
from repository import ROOT

README = PAGES["README.md"]

# How many blocks of each kind a page has: a block that is not found would not be run.
BLOCKS = {
    "README.md": {"sh setup": 2, "sh": 2, "python": 1},
    "docs/architecture.md": {"text": 1},
    "docs/ci.md": {"sh": 1, "yaml": 1, "python": 1},
    "docs/contracts.md": {"sh": 2, "python": 1},
    "docs/decoding.md": {"sh": 1, "python": 2, "js": 1},
    "docs/equality.md": {"sh": 3},
    "docs/files.md": {},
    "docs/library.md": {"python": 1},
    "docs/precision.md": {"sh": 1, "python": 1},
    "docs/speed.md": {},
    "docs/troubleshooting.md": {},
}
RUN = [name for name, kinds in BLOCKS.items() if {"sh", "python"} & set(kinds)]


# --- what can be run -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands and the code use."""
    folder = tmp_path_factory.mktemp("start")
    torch.manual_seed(0)
    torch.save(TranslationModel(30, 20, 32, 4, 1, 1, 48).state_dict(), folder / "model.pt")
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


@pytest.mark.slow
def test_the_first_command_spells_two_words():
    assert first_command().lines[-2:] == ["N AY1 T", "T R AE0 N S F AO1 R M ER0"]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_the_commands_and_the_code_run_as_they_stand(page, start, tmp_path):
    runnable = blocks(page, "sh", "python")
    shutil.copytree(start, tmp_path, dirs_exist_ok=True)
    if any("demo-bundle" in text for _, text in runnable):
        shutil.copytree(first_command().bundle, tmp_path / "demo-bundle")
    for kind, text in runnable:
        run(["bash", "-ec", text] if kind == "sh" else [sys.executable, "-c", text], tmp_path)


@pytest.mark.slow
def test_the_code_for_node_runs_as_it_stands():
    node, package = shutil.which("node"), "onnxruntime-node"
    if not node or subprocess.run([node, "-e", f"require('{package}')"], capture_output=True, check=False).returncode:
        pytest.skip(f"Node has no {package}: npm install it, and set NODE_PATH")
    (text,) = texts("docs/decoding.md", "js")
    printed = "console.log(JSON.stringify(Array.from(tokens.data).map(Number)))"
    whole = f"const ort = require('{package}');\n(async () => {{\n{text}\n{printed}\n}})();"
    vocabulary = json.loads((ROOT / "models" / "demo" / "vocab.json").read_text(encoding="utf-8"))
    names = {number: name for name, number in vocabulary["target"].items()}
    found = json.loads(run([node, "-e", whole], first_command().bundle.parent).splitlines()[-1])
    assert [names[number] for number in found] == ["N", "AY1", "T"]


def test_there_is_something_to_run():
    found = {page: [kind for kind, _ in blocks(page)] for page in PAGES}
    assert {page: {kind: kinds.count(kind) for kind in kinds} for page, kinds in found.items()} == BLOCKS
    assert len(RUN) == 7


def test_the_recipe_for_github_runs_the_commands_that_are_run_here():
    (recipe,) = texts("docs/ci.md", "yaml")
    steps = re.findall(r"- run: (mytx-export .*)", recipe)
    assert len(steps) == 2
    assert "\n".join(steps) in texts("docs/ci.md", "sh")


def test_ci_runs_the_test_command_of_the_readme():
    command = texts("README.md", "sh setup")[1].rpartition("&&")[2].strip()
    assert command == "python -m pytest -n 2 --dist loadfile --no-loadscope-reorder"
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_torch_that_the_readme_installs_is_the_one_that_ci_tests():
    version = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert version is not None
    installs = [f"pip install torch=={version[1]} " in text for text in texts("README.md", "sh setup")]
    assert installs == [True, True]
    assert f"pip install --quiet torch=={version[1]}" in (ROOT / ".ci" / "run").read_text()
    assert torch.__version__.split("+")[0] == version[1]


# --- what is said ----------------------------------------------------------------------------------------------------


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
        row = next(line for line in PAGES["docs/files.md"].splitlines() if line.startswith(f"| `{name}.onnx` |"))
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


def test_the_architecture_names_every_package_of_the_exporter():
    (picture,) = texts("docs/architecture.md", "text")
    named = {line.split()[0] for line in picture.splitlines()}
    assert {f"{path.parent.name}/" for path in (ROOT / "exporter").glob("*/__init__.py")} <= named


def test_the_architecture_names_files_that_exist_and_what_is_in_them():
    folders = (ROOT, ROOT / "exporter", ROOT / "models" / "checkpoints")
    seen = 0
    for step in re.findall(r"^\d\. .+(?:\n   .+)*", PAGES["docs/architecture.md"], flags=re.MULTILINE):
        paths = [path for path in re.findall(r"`([\w./]+(?:\.\w+|/))`", step) if "NAME" not in path]
        found = [next((folder / path for folder in folders if (folder / path).exists()), None) for path in paths]
        assert None not in found, step
        sources = " ".join(path.read_text(encoding="utf-8") for path in found if path and path.is_file())
        for name in re.findall(r"`([A-Za-z_]\w*)`", step) if sources else ():
            assert re.search(rf"\b{name}\b", sources), f"{name}: {step}"
            seen += 1
    assert seen > 20


# --- links -----------------------------------------------------------------------------------------------------------


def links(page: str) -> list[str]:
    """Where the links and pictures of a page lead that stay in the repository."""
    return re.findall(r"\]\((?!http)([^)\s]+)\)", FENCED.sub("", PAGES[page]))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    found = links(page)
    assert found
    for link in found:
        file, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / file).resolve() if file else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def test_every_page_is_linked_from_the_readme():
    assert [page for page in PAGES if page != "README.md" and page not in links("README.md")] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_page_says_first_what_it_is_for(page):
    title, nothing, first = PAGES[page].splitlines()[:3]
    assert title.startswith("# ")
    assert nothing == ""
    assert first.startswith("mytx exports" if page == "README.md" else "This page ")


@pytest.mark.parametrize(("page", "limit"), [("README.md", 150), ("docs/architecture.md", 80)])
def test_a_page_that_is_read_at_once_is_short(page, limit):
    assert len(PAGES[page].splitlines()) <= limit


def test_the_picture_is_small():
    assert 10_000 < (ROOT / "docs" / "parity.png").stat().st_size < 150_000
