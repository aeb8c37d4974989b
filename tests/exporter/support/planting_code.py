"""Code to plant in torch.export files: each creates a marker file when it runs."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

Changes = Mapping[str, bytes | Callable[[bytes], bytes] | None]
PROGRAM = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLES = "data/sample_inputs/model.pt"


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.path,)


def plants() -> dict[str, tuple[Callable[[Path], Changes], str, bool]]:
    """By name: what to change in an honest file, what the refusal says, and whether PyTorch alone would run it."""
    return {
        "sample inputs": (lambda marker: {SAMPLES: _saved(marker)}, "asks to run", True),
        "sample inputs, bare pickle": (lambda marker: {SAMPLES: pickle.dumps(Touch(marker))}, "torch.save", True),
        "sample inputs, nested": (_nested, "torch.save does not write", False),
        "sample inputs, TorchScript": (_nested_script, "torch.save does not write", False),
        "weight": (_weight, "is a pickle", True),
        "constant": (lambda marker: _constant(marker, "tensor_0"), "is a pickle", True),
        "opaque object": (lambda marker: _constant(marker, "opaque_obj_0"), "opaque_obj_0", True),
        "custom object": (lambda marker: _constant(marker, "custom_obj_0"), "custom_obj_0", False),
        "weights of an older format": (lambda marker: {"data/weights/model.pt": _saved(marker)}, "model.pt", True),
        "another record": (lambda marker: {"extra/more.pkl": pickle.dumps(Touch(marker))}, "extra/more.pkl", False),
        "another program": (_more, "more", False),
        "compiled code": (lambda marker: {"data/aotinductor/model/x.so": b"ELF"}, "aotinductor", False),
        "guard": (_in_program(lambda program, code: program["guards_code"].append(code)), "more than arithmetic", True),
        "size": (_in_program(_size), "more than arithmetic", True),
        "range": (_in_program(_range), "more than arithmetic", False),
        "operator": (_in_program(_operator), "torch.os.system", False),
        "file operator": (_in_program(_file_operator), "torch.ops.aten.from_file.default", False),
        "name": (_in_program(_name), "a name that could be taken for code", False),
        "structure": (_in_program(_structure), "in a structure that is not known", False),
        "object": (_in_program(_object), "an object that is not a tensor", False),
        "metadata": (_in_program(_metadata), "metadata that is not known", False),
        "place": (_place, "where no weight can be", False),
    }


def _saved(marker: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Touch(marker), buffer)
    return buffer.getvalue()


def _with_record(content: bytes, name: str, record: bytes) -> bytes:
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(archive.namelist()[0].split("/")[0] + "/" + name, record)
    return buffer.getvalue()


def _nested(marker: Path) -> Changes:
    return {SAMPLES: lambda content: _with_record(content, "inner.pt", _saved(marker))}


def _nested_script(marker: Path) -> Changes:
    return {SAMPLES: lambda content: _with_record(content, "constants.pkl", pickle.dumps(Touch(marker)))}


def _more(marker: Path) -> Changes:
    """A second program, with sample inputs of its own."""
    return {
        "models/more.json": b"{}",
        "data/sample_inputs/more.pt": _saved(marker),
        "data/weights/more.pt": _saved(marker),
    }


def _weight(marker: Path) -> Changes:
    def change(content: bytes) -> bytes:
        config = json.loads(content)
        first = next(iter(config["config"].values()))
        first.update(use_pickle=True, path_name="weight_0")
        return json.dumps(config).encode()

    return {WEIGHTS: change, "data/weights/weight_0": _saved(marker)}


def _constant(marker: Path, place: str) -> Changes:
    entry = {"path_name": place, "is_param": False, "use_pickle": True, "tensor_meta": None}
    content = pickle.dumps(Touch(marker)) if place.startswith("opaque") else _saved(marker)
    config = {"config": {"planted": entry}}
    return {CONSTANTS: json.dumps(config).encode(), f"data/constants/{place}": content}


def _place(marker: Path) -> Changes:
    def change(content: bytes) -> bytes:
        config = json.loads(content)
        next(iter(config["config"].values()))["path_name"] = "../sample_inputs/model.pt"
        return json.dumps(config).encode()

    return {WEIGHTS: change}


# --- in the text of the program --------------------------------------------------------------------------------------


def _in_program(change: Callable[[Any, str], None]) -> Callable[[Path], Changes]:
    def changes(marker: Path) -> Changes:
        def whole(content: bytes) -> bytes:
            program = json.loads(content)
            change(program, f"__import__('pathlib').Path({str(marker)!r}).touch()")
            return json.dumps(program).encode()

        return {PROGRAM: whole}

    return changes


def _graph(program: Any) -> Any:
    return program["graph_module"]["graph"]


def _size(program: Any, code: str) -> None:
    next(iter(_graph(program)["sym_int_values"].values()))["as_expr"]["expr_str"] = code


def _range(program: Any, code: str) -> None:
    program["range_constraints"][code] = {"min_val": 1, "max_val": 2}


def _operator(program: Any, code: str) -> None:
    _graph(program)["nodes"][0]["target"] = "torch.os.system"


def _file_operator(program: Any, code: str) -> None:
    _graph(program)["nodes"][0]["target"] = "torch.ops.aten.from_file.default"


def _name(program: Any, code: str) -> None:
    _graph(program)["nodes"][0]["name"] = code


def _structure(program: Any, code: str) -> None:
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    structure = json.loads(signature["in_spec"])
    structure[1]["children_spec"][1]["context"] = '{"__enum__": true, "fqn": "antigravity:x", "name": "y"}'
    signature["in_spec"] = json.dumps(structure)


def _object(program: Any, code: str) -> None:
    _graph(program)["nodes"][0]["inputs"][0]["arg"] = {"as_custom_obj": {"name": "x", "class_fqn": "y"}}


def _metadata(program: Any, code: str) -> None:
    _graph(program)["nodes"][0]["metadata"]["from_node"] = "[]"
