"""Writing the files of a bundle: every graph in every format, one after the other or in processes side by side."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ...models import Model, load_model, save_model
from ...models.checkpoints.values import is_finite
from ..errors import ExportError
from ..formats.table import FORMATS, ExportOptions
from ..graphs.graph import Graph
from ..graphs.model_graphs import graphs_of
from ..quiet import quiet
from .staging import undisturbed

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """A file to be written: a graph in a format."""

    format: str
    graph: str


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
        model: in evaluation mode; where files are made side by side, one of ours.
        graphs: all that the model has.
        chosen: which to write.
        formats: names in :data:`~mytx.exporter.formats.table.FORMATS`.
        folder: where to.
        options: for the formats.
        masks: as for :func:`~mytx.exporter.graphs.model_graphs.graphs_of`.
        jobs: how many files are made at the same time, each in a process that needs memory for a model. A script that
            asks for several needs ``if __name__ == "__main__":``, as for any ``multiprocessing``.
        progress: told what is being done.

    Raises:
        ExportError: where a graph cannot be exported.
        OSError: where a file cannot be written.
    """
    tasks = [Task(name, graph) for name in formats for graph in chosen if FORMATS[name].holds(graphs[graph].contract)]
    finite = all(is_finite(tensor) for tensor in model.state_dict().values())
    if jobs == 1 or len(tasks) == 1 or not finite:  # what is not finite cannot be saved for the other processes
        for task in tasks:
            progress(f"Exporting {FORMATS[task.format].file(task.graph)}")
            FORMATS[task.format].load_exporter().export(graphs, task.graph, folder, options)
        return
    assert isinstance(model, Model)
    _side_by_side(model, graphs, tasks, folder, options, masks, jobs, progress)


def _side_by_side(
    model: Model,
    graphs: dict[str, Graph],
    tasks: list[Task],
    folder: Path,
    options: ExportOptions,
    masks: str | None,
    jobs: int,
    progress: Progress,
) -> None:
    # Started anew, not forked: PyTorch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as saved:
        save_model(model, saved)
        pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, initializer=_start, initargs=(saved, masks))
        try:
            _work_off(pool, graphs, tasks, folder, options, progress)
        except BrokenProcessPool as error:
            raise ExportError(
                "a process that was exporting has died, perhaps for want of memory",
                'use fewer --jobs; a script that exports with jobs needs `if __name__ == "__main__":`',
            ) from error
        finally:  # after an error or Ctrl-C, too: whoever waits should not wait for files that nobody wants
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(cancel_futures=True)


def _work_off(
    pool: ProcessPoolExecutor,
    graphs: dict[str, Graph],
    tasks: list[Task],
    folder: Path,
    options: ExportOptions,
    progress: Progress,
) -> None:
    """Each task as soon as what it needs is done."""
    running: dict[Future[None], Task] = {}
    waiting, done = list(tasks), set[Task]()
    while waiting or running:
        for task in list(waiting):
            before = {Task(task.format, name) for name in _needs(graphs, task)} & set(tasks)
            if before <= done:
                waiting.remove(task)
                with undisturbed():  # the new process would print a traceback of its own
                    running[pool.submit(_work, task, folder, options)] = task
        names = ", ".join(sorted(FORMATS[task.format].file(task.graph) for task in running.values()))
        progress(f"Exporting {names}")
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            future.result()
            done.add(running.pop(future))


def _needs(graphs: dict[str, Graph], task: Task) -> tuple[str, ...]:
    needed: tuple[str, ...] = FORMATS[task.format].load_exporter().needs(graphs, task.graph)
    return needed


# --- in another process ----------------------------------------------------------------------------------------------

_graphs: dict[str, Graph] = {}


def _start(saved: str, masks: str | None) -> None:
    _graphs.update(graphs_of(load_model(saved).eval(), masks))


def _work(task: Task, folder: Path, options: ExportOptions) -> None:
    with quiet(options.verbose):
        FORMATS[task.format].load_exporter().export(_graphs, task.graph, folder, options)
