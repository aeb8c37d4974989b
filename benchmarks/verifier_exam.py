"""The verifier's own exam: planted faults that it must catch, honest models that it must pass, and two other rules.

    python -m benchmarks.verifier_exam [--json] [--quick] [--honest 200] [--jobs 2]

The faults are the catalogue in ``tests/faults``; each is verified by the standard plan. An honest model is an exported
architecture with a set of weights put into the model and its files, verified with all its graphs as the command does.
The other rules, on the same files: ``torch.onnx.export(verify=True)``'s, and ``np.allclose(atol=1e-5)`` at the traced
shape (both in ``tests/faults/rules.py``). Exit code 1 unless all faults are caught without a false alarm.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "exporter" / "support"), str(ROOT / "tests" / "faults")]
CHUNK = 8  # faults that a process takes at a time
QUICK_HONEST = (("average pooling", "normal, 0.1"), ("average pooling", "Xavier"), ("translation", "low rank"))
RULES = {"torch_verify": "torch.onnx.export(verify=True)", "allclose": "np.allclose(atol=1e-5)"}

Row = dict[str, Any]


# --- in the processes ------------------------------------------------------------------------------------------------


def _start() -> None:
    import torch

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def _exported(kind: str, folder: str) -> Any:
    from exported_models import EVERY_KIND, Exported, build

    own = Path(folder) / re.sub(r"\W+", "-", kind)
    own.mkdir(exist_ok=True)
    return Exported(build(kind), EVERY_KIND[kind][1], own)


def _export(kind: str, graphs: list[str], folder: str) -> list[Row]:
    exported = _exported(kind, folder)
    for graph in [*exported.graphs, *graphs] if "full" in graphs else graphs:
        exported.path(graph)
    return []


_kept: dict[str, Any] = {}


def _faults(names: list[str], folder: str) -> list[Row]:
    from catalogue import FAULTS
    from examine import examine
    from subject import collect_less

    rows = []
    for fault in FAULTS:
        if fault.name in names:
            if fault.model not in _kept:
                _kept[fault.model] = _exported(fault.model, folder)
            _kept[fault.model].expected(fault.graph)
            collect_less()
            with tempfile.TemporaryDirectory() as planted:
                rows.append(asdict(examine(fault, _kept[fault.model], Path(planted) / "planted")))
    return rows


def _honest(architecture: str, weights: list[str]) -> list[Row]:
    from honest import examine_honest

    return [asdict(row) for row in examine_honest(architecture, weights)]


# --- the exam --------------------------------------------------------------------------------------------------------


def _chosen_faults(quick: bool) -> list[Any]:
    """All; or of the graphs of two models, plain and cached, the first of each kind."""
    from catalogue import FAULTS

    if not quick:
        return list(FAULTS)
    found: dict[str, Any] = {}
    for fault in FAULTS:
        if fault.model in ("translation", "lively") and fault.graph != "full":
            found.setdefault(fault.kind, fault)
    return list(found.values())


def _chosen_honest(quick: bool, count: int) -> dict[str, list[str]]:
    """By architecture the sets of weights; of all architectures the first sets first."""
    from honest import ARCHITECTURES, weights_of

    pairs: Iterable[tuple[str, str]] = QUICK_HONEST
    if not quick:
        sets = {name: list(weights_of(name)) for name in ARCHITECTURES}
        longest = max(map(len, sets.values()))
        pairs = [(name, own[i]) for i in range(longest) for name, own in sets.items() if i < len(own)]
    chosen: dict[str, list[str]] = {}
    for name, weights in list(pairs)[:count]:
        chosen.setdefault(name, []).append(weights)
    return chosen


def _all(pool: ProcessPoolExecutor, tasks: list[tuple[Any, ...]], say: Callable[[str], None]) -> Iterator[Row]:
    futures = [pool.submit(*task) for task in tasks]
    for number, future in enumerate(as_completed(futures), 1):
        yield from future.result()
        say(f"{number} of {len(tasks)} tasks done")


def hold(quick: bool, honest: int, jobs: int, say: Callable[[str], None] = lambda _: None) -> Row:
    """Hold the exam; returns counts and rows."""
    start = time.perf_counter()
    faults, models = _chosen_faults(quick), _chosen_honest(quick, honest)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(jobs, context, initializer=_start) as pool:
        kinds = sorted({fault.model for fault in faults})
        graphs = {kind: sorted({fault.graph for fault in faults if fault.model == kind}) for kind in kinds}
        list(_all(pool, [(_export, kind, graphs[kind], folder) for kind in kinds], say))
        names = [fault.name for fault in sorted(faults, key=lambda fault: fault.model)]
        # The long ones first, so that no process is left with one at the end.
        tasks: list[tuple[Any, ...]] = [(_honest, name, sets) for name, sets in reversed(models.items())]
        tasks += [(_faults, names[i : i + CHUNK], folder) for i in range(0, len(names), CHUNK)]
        rows = list(_all(pool, tasks, say))
    order = {fault.name: number for number, fault in enumerate(faults)}
    caught = sorted((row for row in rows if "fault" in row), key=lambda row: order[row["fault"]])
    passed = [row for row in rows if "architecture" in row]
    return {
        **_counts(caught, passed),
        "seconds": round(time.perf_counter() - start, 1),
        "faults": caught,
        "models": passed,
    }


def _counts(faults: list[Row], models: list[Row]) -> Row:
    judged = [row for row in models if row["verdict"] != "not judged"]
    placed = [row["named"] for row in faults if row["named"] is not None]
    return {
        "planted": len(faults),
        "caught": sum(row["caught"] for row in faults),
        "large": sum(row["moved"] is not None and row["moved"] > 10 for row in faults),
        "places": len(placed),
        "places_named": sum(placed),
        "honest": len(judged),
        "honest_quantised": sum(row["quantised"] for row in judged),
        "false_alarms": sum(row["verdict"] == "false alarm" for row in judged),
        "not_judged": len(models) - len(judged),
        "compared": sum(row["compared"] for row in models),
        "others": {
            name: {
                "planted": sum(row[key] is not None for row in faults),
                "caught": sum(bool(row[key]) for row in faults),
                "honest": len(judged),
                "false_alarms": sum(row[key] for row in judged),
            }
            for key, name in RULES.items()
        },
    }


# --- what is printed -------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN: None."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(result: Row) -> None:
    def mark(found: bool | None) -> str:
        return "-" if found is None else "yes" if found else "NO"

    print(f"{'fault':62} {'noises':>9} {'mytx':>5} {'torch':>6} {'allclose':>9}  checks")
    for row in result["faults"]:
        moved = "-" if row["moved"] is None else f"{row['moved']:.2g}"
        marks = f"{mark(row['caught']):>5} {mark(row['torch_verify']):>6} {mark(row['allclose']):>9}"
        print(f"{row['kind'] + ': ' + row['fault']:62} {moved:>9} {marks}  {', '.join(row['checks'])}")
    for row in result["models"]:
        if row["verdict"] != "passed":
            print(f"{row['architecture']}, {row['weights']}: {row['verdict']}: {'; '.join(row['findings'][:2])}")
    places = f"{result['places_named']} of {result['places']} places named"
    print(
        f"\nplanted {result['planted']} ({result['large']} of them over 10 noises), caught {result['caught']}, {places}"
    )
    print(
        f"honest {result['honest']} ({result['honest_quantised']} of them in int8 and int4, too), false alarms "
        f"{result['false_alarms']}, not judged {result['not_judged']}; {result['compared']:,} values compared"
    )
    for name, row in result["others"].items():
        alarms = f"false alarms {row['false_alarms']} of {row['honest']}"
        print(f"{name}: caught {row['caught']} of {row['planted']}, {alarms}")
    print(f"{result['seconds']:.0f} s")


def main() -> int:
    """Hold the exam and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="a fault of each kind and three honest models")
    parser.add_argument("--honest", type=int, default=10_000, metavar="N", help="at most so many honest models")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes")
    options = parser.parse_args()
    interactive = sys.stderr.isatty()
    result = hold(
        options.quick, options.honest, options.jobs, lambda text: print(text, file=sys.stderr) if interactive else None
    )
    if options.json:
        print(json.dumps(_plain(result)))
    else:
        _print(result)
    return 0 if result["caught"] == result["planted"] and not result["false_alarms"] else 1


if __name__ == "__main__":
    sys.exit(main())
