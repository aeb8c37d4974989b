"""Export of a preset: mytx (all graphs, verified) beside a plain ``torch.onnx.export`` of encoder, decoder and full.

    python -m benchmarks.export [--preset base] [--json]
    python -m benchmarks.export --layers 3 12 [--preset small] [--json]

Each runs in a process of its own, one after the other. Memory is the peak above what the imports alone take. With
``--layers`` mytx alone exports the preset with so many layers on both sides, unverified: does it grow with depth?
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any


def peak() -> float:
    """The largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_mytx(preset: str, folder: Path) -> dict[str, Any]:
    """What the command does, from a model to a verified bundle."""
    import onnxruntime  # noqa: F401

    from mytx.exporter import export_bundle
    from mytx.models import build_preset

    baseline = peak()
    model = build_preset(preset)
    start = time.perf_counter()
    result = export_bundle(model, folder / "bundle")
    assert result.report is not None
    return {
        "seconds": time.perf_counter() - start,
        "stages": result.seconds,
        "peak_mb": peak() - baseline,
        "weights_mb": sum(p.numel() for p in model.parameters()) * 4 / 2**20,
        "passed": result.passed,
        "worst_ratio": {f"{row.graph}, {row.runtime}": round(row.worst_ratio, 3) for row in result.report.graphs},
    }


def run_plain(preset: str, folder: Path) -> dict[str, Any]:
    """Encoder, decoder and full by ``torch.onnx.export`` with its defaults, saved, not verified."""
    import onnxruntime  # noqa: F401
    import torch

    from mytx.exporter.cases.plan import example
    from mytx.exporter.contracts.contract import Axis
    from mytx.exporter.graphs.model_graphs import graphs_of
    from mytx.models import build_preset

    baseline = peak()
    model = build_preset(preset).eval()
    start = time.perf_counter()
    stages = {}
    graphs = graphs_of(model)
    for name in ("encoder", "decoder", "full"):
        graph = graphs[name]
        begun = time.perf_counter()
        specs = graph.contract.inputs
        inputs = tuple(torch.from_numpy(example(graph.contract).inputs[spec.name]) for spec in specs)
        varies = tuple(
            {i: torch.export.Dim.DYNAMIC for i, a in enumerate(s.axes) if isinstance(a, Axis)} for s in specs
        )
        path = folder / f"{name}.onnx"
        torch.onnx.export(
            graph.module,
            inputs,
            path,
            dynamo=True,
            opset_version=18,
            dynamic_shapes=varies,
            external_data=False,
            verbose=False,
        )
        stages[name] = round(time.perf_counter() - begun, 3)
    return {"seconds": time.perf_counter() - start, "stages": stages, "peak_mb": peak() - baseline}


def run_depth(preset: str, folder: Path, layers: int) -> dict[str, Any]:
    """All graphs of the preset with another number of layers, exported and not verified."""
    from mytx.exporter import export_bundle
    from mytx.models import PRESETS, TranslationModel

    sizes = PRESETS[preset]._asdict()
    vocabulary = sizes.pop("vocab_size")
    model = TranslationModel(
        vocabulary, vocabulary, **{**sizes, "num_encoder_layers": layers, "num_decoder_layers": layers}
    )
    return {"seconds": export_bundle(model, folder / "bundle", verify=False).seconds["export"]}


WORKERS = {"plain": run_plain, "mytx": run_mytx}


def in_process(worker: str, preset: str, *more: str) -> dict[str, Any]:
    """What a worker measures, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.export", "--preset", preset, "--worker", worker, *more]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def in_words(seconds: dict[int, float]) -> list[str]:
    """A line for each number of layers."""
    first, least = next(iter(seconds.items()))
    return [f"{n} layers: export {each:.1f} s, {each / least:.2f} x {first} layers" for n, each in seconds.items()]


def main() -> None:
    """Run both, print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help="export with so many layers instead")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--worker", choices=[*WORKERS, "depth"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        with tempfile.TemporaryDirectory() as folder:
            if options.worker == "depth":
                print(json.dumps(run_depth(options.preset, Path(folder), options.layers[0])))
            else:
                print(json.dumps(WORKERS[options.worker](options.preset, Path(folder))))
        return
    if options.layers:
        seconds = {n: in_process("depth", options.preset, "--layers", str(n))["seconds"] for n in options.layers}
        print(json.dumps(seconds) if options.json else "\n".join(in_words(seconds)))
        return
    results = {worker: in_process(worker, options.preset) for worker in WORKERS}
    if options.json:
        print(json.dumps(results))
        return
    plain, ours = results["plain"], results["mytx"]
    checked = ours["stages"]["reference"] + ours["stages"]["verify"]
    print(f"preset {options.preset}, weights {ours['weights_mb']:.0f} MB")
    print(f"plain torch.onnx.export: {plain['seconds']:.1f} s {plain['stages']}, peak {plain['peak_mb']:.0f} MB")
    print(f"mytx: export {ours['stages']['export']:.1f} s, verification {checked:.1f} s {ours['stages']}")
    print(f"mytx: peak {ours['peak_mb']:.0f} MB = {ours['peak_mb'] / ours['weights_mb']:.2f} x weights")
    print(f"mytx: export / plain {ours['stages']['export'] / plain['seconds']:.2f}, passed {ours['passed']}")
    print(f"worst ratio of 4 allowed: {ours['worst_ratio']}")


if __name__ == "__main__":
    main()
