"""Export of a preset: mytx (all graphs, verified) beside a plain ``torch.onnx.export`` of encoder, decoder and full.

    python -m benchmarks.export [--preset base] [--json]

Each runs in a process of its own, one after the other. Memory is the peak above what the imports alone take.
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


WORKERS = {"plain": run_plain, "mytx": run_mytx}


def main() -> None:
    """Run both, print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(WORKERS[options.worker](options.preset, Path(folder))))
        return
    results: dict[str, Any] = {}
    for worker in WORKERS:
        command = [sys.executable, "-m", "benchmarks.export", "--preset", options.preset, "--worker", worker]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        results[worker] = json.loads(output.splitlines()[-1])
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
