"""A manifest that lacks a key: every command says so, or does without, and none ends as a bug."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from bundles import copy_of_bundle, tiny_bundle
from cli_support import Result, Run
from mytx.exporter import BundleError, open_bundle
from mytx.exporter.bundle.manifest import MANIFEST
from mytx.exporter.parity.report import ParityReport
from mytx.exporter.verification import with_earlier

COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": (),
    "verify": ("--quiet",),
    "run": ("abc", "--max-length", "2"),
    "bench": ("--steps", "1", "--rounds", "1"),
    "locate": ("--graph", "encoder", "--no-reproduction", "--quiet"),
}
CONTRACT = "graphs/encoder.onnx/contract"

# What no command does without.
NEEDED = [
    "format",
    "tools",
    "model",
    "files",
    "graphs",
    "assumed",
    "parity",
    "model/kind",
    "parity/passed",
    "files/0/path",
    "files/0/bytes",
    "files/0/sha256",
    "graphs/encoder.onnx/file",
    "graphs/encoder.onnx/format",
    "graphs/encoder.onnx/opset",
    "graphs/encoder.onnx/ir_version",
    CONTRACT,
    f"{CONTRACT}/graph",
    f"{CONTRACT}/inputs",
    f"{CONTRACT}/outputs",
    f"{CONTRACT}/layout",
    f"{CONTRACT}/ids",
    "assumed/0/name",
    "assumed/0/value",
    "assumed/0/source",
    "parity/graphs/0/graph",
    "parity/graphs/0/format",
    "parity/graphs/0/passed",
]
# What a command may do without, and the commands that do not.
OPTIONAL: dict[str, tuple[str, ...]] = {
    "model/parameters": (),
    "model/config_sha256": (),
    "model/weights_sha256": ("bench", "locate"),  # which rebuild the model from the files, and check its weights
    "parity/graphs": (),
    "parity/task": (),
    "graphs/encoder.onnx/runtime": (),
    f"{CONTRACT}/empty_rows": (),
    f"{CONTRACT}/opened": (),
}


def manifest_of(bundle: Path) -> Any:
    """The manifest, with something assumed: this model was not read from a checkpoint."""
    values = json.loads((bundle / MANIFEST).read_text())
    return {**values, "assumed": [{"name": "activation", "value": "relu", "source": "default"}]}


def inner(values: Any, place: str) -> Any:
    """What is at a place such as ``files/0``."""
    parts = [int(part) if part.isdigit() else part for part in place.split("/") if part]
    return reduce(lambda found, key: found[key], parts, values)


def without(bundle: Path, place: str) -> Path:
    """``bundle`` with the key at ``place`` removed from its manifest."""
    values = manifest_of(bundle)
    above, _, key = place.rpartition("/")
    del inner(values, above)[key]
    (bundle / MANIFEST).write_text(json.dumps(values))
    return bundle


def assert_said(result: Result) -> None:
    """Exit code 2, in one or two lines."""
    assert result.code == 2, result.err
    lines = result.err.splitlines()
    assert len(lines) <= 2
    assert lines[0].startswith("error: ")


def test_no_key_is_forgotten_here() -> None:
    values = manifest_of(tiny_bundle())
    listed: dict[str, set[str]] = {}
    for place in [*NEEDED, *OPTIONAL]:
        above, _, key = place.rpartition("/")
        listed.setdefault(above, set()).add(key)
    rows = listed.pop("parity/graphs/0")
    assert rows < set(inner(values, "parity/graphs/0"))  # the others are of verify alone
    assert listed == {above: set(inner(values, above)) for above in listed}
    assert len(listed) == 7


@pytest.mark.parametrize("place", NEEDED)
def test_without_a_needed_key_every_command_refuses_the_bundle(place: str, run: Run, tmp_path: Path) -> None:
    bundle = without(copy_of_bundle(tmp_path), place)
    for command, options in COMMANDS.items():
        result = run(command, bundle, *options)
        assert_said(result)
        assert "manifest.json is damaged" in result.err
        assert place.rpartition("/")[2] in result.err


@pytest.mark.parametrize(("place", "refusing"), OPTIONAL.items())
def test_without_an_optional_key_a_command_works_or_says_why_not(
    place: str, refusing: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    bundle = without(copy_of_bundle(tmp_path), place)
    for command, options in COMMANDS.items():
        result = run(command, bundle, *options)
        if command in refusing:
            assert_said(result)
            assert place.rpartition("/")[2] in result.err
        else:
            assert result.code == 0, f"{command}: {result.err}"


def test_without_a_number_of_parameters_inspect_and_the_page_say_that_it_is_unknown(run: Run, tmp_path: Path) -> None:
    bundle = without(copy_of_bundle(tmp_path), "model/parameters")
    assert "translation, an unknown number of parameters" in run("inspect", bundle).out
    assert run("inspect", bundle, "--json").code == 0
    assert run("verify", bundle, "--quiet", "--html", tmp_path / "page.html").code == 0
    assert "A translation model of ? parameters" in (tmp_path / "page.html").read_text()


DEEP = [f"{CONTRACT}/inputs/0", f"{CONTRACT}/inputs/0/axes/0"]


@pytest.mark.parametrize("above", DEEP)
def test_without_any_key_of_an_input_or_an_axis_no_command_ends_as_a_bug(above: str, run: Run, tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path)
    whole = (bundle / MANIFEST).read_text()
    keys = list(inner(json.loads(whole), above))
    assert len(keys) > 5
    for key in keys:
        (bundle / MANIFEST).write_text(whole)
        without(bundle, f"{above}/{key}")
        for command in ("inspect", "run"):
            result = run(command, bundle, *COMMANDS[command])
            if result.code:
                assert_said(result)


def reading_the_report(bundle: Path, row: dict[str, Any]) -> None:
    """What ``verify`` does last: it reads the report in the manifest, here with ``row`` in it."""
    values = manifest_of(bundle)
    values["parity"]["graphs"][0] = row
    (bundle / MANIFEST).write_text(json.dumps(values))
    with_earlier(ParityReport(()), open_bundle(bundle))


def test_a_report_with_a_row_that_is_not_whole_is_damaged(tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path)
    row = manifest_of(bundle)["parity"]["graphs"][0]
    for key in row:
        absent = {name: value for name, value in row.items() if name != key}
        if key in ("allowed", "notes"):
            reading_the_report(bundle, absent)
            continue
        with pytest.raises(BundleError, match="damaged"):
            reading_the_report(bundle, absent)
        with pytest.raises(BundleError, match="damaged"):
            reading_the_report(bundle, {**row, key: [7]})


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("model/weights_sha256", 5),
        ("assumed/0/name", {}),
        ("assumed/0/source", 3),
        ("parity/graphs/0/graph", {}),
        ("parity/graphs/0/format", None),
        ("parity/graphs/0/passed", "yes"),
    ],
)
def test_what_readers_use_has_its_type(place: str, value: Any, tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path)
    values = manifest_of(bundle)
    above, _, key = place.rpartition("/")
    inner(values, above)[key] = value
    (bundle / MANIFEST).write_text(json.dumps(values))
    with pytest.raises(BundleError, match=rf"manifest\.json is damaged: TypeError: \S*{key} is not of its type"):
        open_bundle(bundle)
