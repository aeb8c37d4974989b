"""Writing the graph files of a bundle, one after the other or in parallel processes."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import nn

from ...models import Model, load_model, save_model
from ...models.checkpoints.values import is_finite
from ..cases.case import Array
from ..errors import ExportError
from ..formats.onnx.shared_weights import write_weights
from ..formats.quantisation import quantised_weights, rule_of
from ..formats.table import FORMATS, ExportOptions
from ..graphs.graph import Graph
from ..graphs.model_graphs import graphs_of
from ..quiet import quiet
from .staging import undisturbed

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """A file to write: a graph in a format."""

    format: str
    graph: str


class Write(Protocol):
    """:func:`write_files`, with all but these arguments given."""

    def __call__(self, chosen: Sequence[str], formats: Sequence[str], *, options: ExportOptions) -> None: ...


def write_files(
    model: nn.Module,
    graphs: dict[str, Graph],
    chosen: Sequence[str],
    formats: Sequence[str],
    folder: Path,
    *,
    options: ExportOptions,
    shared: bool,
    masks: str | None = None,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> None:
    """Write the files of the ``chosen`` graphs, and first the weights that ONNX files share, if they are ``shared``.
    For the other arguments see :func:`export_files`.
    """
    if shared:
        progress("Writing the weights")
        write_shared(folder, {name: graphs[name] for name in chosen}, formats, options.kept)
    export_files(model, graphs, chosen, formats, folder, options, masks=masks, jobs=jobs, progress=progress)


def export_files(
    model: nn.Module,
    graphs: dict[str, Graph],
    chosen: Sequence[str],
    formats: Sequence[str],
    folder: Path,
    options: ExportOptions,
    *,
    masks: str | None = None,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> None:
    """Write the ``chosen`` graphs in each of ``formats`` to ``folder``.

    Args:
        model: a model in evaluation mode; one of :mod:`mytx.models` if ``jobs`` is more than 1.
        graphs: all graphs of the model, by name.
        chosen: names of the graphs to write.
        formats: names in :data:`~mytx.exporter.formats.table.FORMATS`.
        folder: the folder to write to.
        options: options for the formats.
        masks: as for :func:`~mytx.exporter.graphs.model_graphs.graphs_of`.
        jobs: number of files that are written at the same time, each in a process that needs memory for a model. As
            for any ``multiprocessing``, a script that uses several needs ``if __name__ == "__main__":``.
        progress: called with a description of what is being done.

    Raises:
        ExportError: if a graph cannot be exported.
        OSError: if a file cannot be written.
    """
    tasks = [Task(name, graph) for name in formats for graph in chosen if FORMATS[name].holds(graphs[graph].contract)]
    finite = all(is_finite(tensor) for tensor in model.state_dict().values())
    if jobs == 1 or len(tasks) == 1 or not finite:  # weights that are not finite cannot be saved for other processes
        for task in tasks:
            progress(f"Exporting {FORMATS[task.format].file(task.graph)}")
            FORMATS[task.format].load_exporter().export(graphs, task.graph, folder, options)
        return
    assert isinstance(model, Model)
    _export_in_processes(model, graphs, tasks, folder, options, masks, jobs, progress)


def weights_of(graphs: dict[str, Graph]) -> dict[str, dict[str, Array]]:
    """The weights of each graph, by name. The arrays share the model's memory."""
    return {name: {key: tensor.numpy() for key, tensor in graph.weights().items()} for name, graph in graphs.items()}


def write_shared(
    folder: Path, graphs: dict[str, Graph], formats: Sequence[str], kept: frozenset[str] = frozenset()
) -> None:
    """Write the weights that ONNX files share, a file for each precision among ``formats``; those ``kept`` are float32
    in formats that are ``mixed``.
    """
    weights = weights_of(graphs)
    for known in map(FORMATS.__getitem__, formats):
        if known.made_of:
            every = {name: array for own in weights.values() for name, array in own.items()}
            everything = quantised_weights(every, rule_of(known, kept), next(iter(graphs.values())).looked_up())
            write_weights(folder, {"": everything}, known.weights)
        elif known.precision:
            write_weights(folder, weights, known.weights)


def _export_in_processes(
    model: Model,
    graphs: dict[str, Graph],
    tasks: list[Task],
    folder: Path,
    options: ExportOptions,
    masks: str | None,
    jobs: int,
    progress: Progress,
) -> None:
    # New processes, not forks: PyTorch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as saved:
        save_model(model, saved)
        pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, initializer=_start, initargs=(saved, masks))
        try:
            _run_tasks(pool, graphs, tasks, folder, options, progress)
        except BrokenProcessPool as error:
            raise ExportError(
                "a process that was exporting has died, perhaps for want of memory",
                'use fewer --jobs; a script that exports with jobs needs `if __name__ == "__main__":`',
            ) from error
        finally:  # after an error or Ctrl-C, do not wait for files that are no longer needed
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(cancel_futures=True)


def _run_tasks(
    pool: ProcessPoolExecutor,
    graphs: dict[str, Graph],
    tasks: list[Task],
    folder: Path,
    options: ExportOptions,
    progress: Progress,
) -> None:
    """Run each task as soon as the tasks that it needs are done."""
    running: dict[Future[None], Task] = {}
    waiting, done = list(tasks), set[Task]()
    while waiting or running:
        for task in list(waiting):
            before = _needs(graphs, task) & set(tasks)
            if before <= done:
                waiting.remove(task)
                with undisturbed():  # or the new process would print its own traceback after Ctrl-C
                    running[pool.submit(_run_task, task, folder, options)] = task
        names = ", ".join(sorted(FORMATS[task.format].file(task.graph) for task in running.values()))
        progress(f"Exporting {names}")
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            future.result()
            done.add(running.pop(future))


def _needs(graphs: dict[str, Graph], task: Task) -> set[Task]:
    known = FORMATS[task.format]
    needed = {Task(task.format, name) for name in known.load_exporter().needs(graphs, task.graph)}
    return needed | ({Task(known.made_of, task.graph)} if known.made_of else set())


# --- in another process ----------------------------------------------------------------------------------------------

_graphs: dict[str, Graph] = {}


def _start(saved: str, masks: str | None) -> None:
    _graphs.update(graphs_of(load_model(saved).eval(), masks))


def _run_task(task: Task, folder: Path, options: ExportOptions) -> None:
    with quiet(options.verbose):
        FORMATS[task.format].load_exporter().export(_graphs, task.graph, folder, options)
