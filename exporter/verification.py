"""``mytx-export verify``: check that a bundle is complete, and compare its files with PyTorch. No torch here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .bundle.manifest import MANIFEST, sha256
from .bundle.open import Bundle, open_bundle
from .bundle.typed import fits
from .cases.identities import every_case
from .cases.user_cases import read_cases
from .contracts.contract import CUSTOM_KIND
from .errors import BundleError, OptionError
from .formats.table import FORMATS, Format
from .parity.compare import Expected, rounded_otherwise
from .parity.report import EARLIER, GraphReport, ParityReport
from .parity.stored import STORED, StoredCases, key_of, read_stored
from .parity.verify import verify_file
from .quiet import quiet
from .runtimes.run import Run, check_file, runs_of


@dataclass(frozen=True)
class BundleCheck:
    """The result of :func:`verify_bundle`.

    Attributes:
        bundle: folder of the bundle.
        report: what verification found.
        manifest_sha256: SHA-256 of the manifest, which holds the hashes of all other files.
        seconds: duration.
        stored: whether the stored cases ran, without the model.
        factory: ``package.module:build`` of a user's own model, from the bundle; empty for one of mytx's models.
    """

    bundle: Path
    report: ParityReport
    manifest_sha256: str
    seconds: float
    stored: bool = True
    factory: str = ""

    @property
    def passed(self) -> bool:
        """Whether all files passed."""
        return self.report.passed

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "passed": self.passed,
            "bundle": str(self.bundle),
            "graphs": self.report.to_dict(details=False)["graphs"],
            "task": [one.to_dict() for one in self.report.task],
            "manifest_sha256": self.manifest_sha256,
            "seconds": self.seconds,
        }


def verify_bundle(
    path: str | Path,
    *,
    formats: Sequence[str] = (),
    level: str | None = None,
    own: Sequence[Path | str] = (),
    factory: str | None = None,
    verbose: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> BundleCheck:
    """Check every file of the bundle at ``path``, and compare its files with PyTorch's stored results.

    This needs no PyTorch, unless ``level``, ``own`` or ``factory`` is given, or a format that PyTorch runs.

    Args:
        path: folder of the bundle.
        formats: formats to verify. Empty means all formats except ``torchscript`` and ``pt2``, whose files can run code
            when they are opened: name these only if you trust the bundle's source.
        level: ``quick``, ``standard`` or ``thorough``: rebuild the model from the bundle in PyTorch, and compare with
            it on this number of cases instead.
        own: files with your own cases; the model is rebuilt, too.
        factory: ``package.module:build``, which rebuilds a user's own model.
        verbose: show the messages of onnxruntime.
        progress: called with the name of each stage.

    Raises:
        BundleError: if it is not a bundle, is not complete, or has no stored cases.
        OptionError: if a format, the level or a case does not fit the bundle.
    """
    start = time.perf_counter()
    progress("Checking the files")
    bundle = open_bundle(path, allow_failed=True)
    chosen = _formats(bundle, formats)
    for known in chosen:
        for entry in bundle.manifest.of_format(known.name).values():
            check_file(known, bundle.folder / entry.file)
    by_cases = level is None and not own and factory is None
    if by_cases:
        report = _verify_stored(bundle, chosen, verbose, progress)
    else:
        report = _verify_rebuilt(bundle, chosen, level or "standard", own, verbose, progress, factory)
    digest = sha256(bundle.folder / MANIFEST)
    seconds = round(time.perf_counter() - start, 3)
    source = str(bundle.config.get("source", "")) if bundle.manifest.kind == CUSTOM_KIND else ""
    return BundleCheck(bundle.folder, with_earlier(report, bundle), digest, seconds, by_cases, source)


def with_earlier(report: ParityReport, bundle: Bundle) -> ParityReport:
    """Add to ``report`` what failed during the export and passes now, and what the task gave then.

    Passing now does not prove that it is right: there are fewer cases, and no model or ``--reference`` class.

    Raises:
        BundleError: if the report in the manifest is damaged.
    """
    try:
        parity = bundle.manifest.parity
        before = ParityReport.from_dict({"graphs": parity.get("graphs", []), "task": parity.get("task", [])})
        earlier = before.graphs
        if not fits(before, ParityReport) or not all(one.sentences > 0 for one in before.task):
            raise TypeError("a value is not of its type")
    except (LookupError, TypeError, ValueError) as error:
        raise BundleError(f"the report in {bundle.folder / MANIFEST} is damaged", "export the bundle again") from error
    named = not all(row.passed for row in earlier) or not all(one.passed for one in before.task)
    if parity["passed"] is False and not named:
        raise BundleError(
            f"{bundle.folder / MANIFEST} says that parity failed, and not where", "do not deploy it: export it again"
        )
    failing = {(row.graph, row.format, row.runtime) for row in report.graphs if not row.passed}
    more = [row for row in earlier if not row.passed and (row.graph, row.format, row.runtime) not in failing]
    found = [replace(row, runtime=row.runtime + EARLIER) for row in more]
    return ParityReport((*report.graphs, *found), before.task)


@dataclass(frozen=True)
class BundlePlan:
    """The cases that verify a bundle.

    Attributes:
        bundle: folder of the bundle.
        graphs: name, group and words of each case, by graph.
    """

    bundle: Path
    graphs: dict[str, tuple[dict[str, str], ...]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"bundle": str(self.bundle), "graphs": self.graphs}


def plan_of_bundle(path: str | Path, *, level: str | None = None, own: Sequence[Path | str] = ()) -> BundlePlan:
    """The plan of the bundle at ``path``: its stored cases, or those of ``level`` and the user's ``own``.

    Raises:
        BundleError: if it is not a bundle, or has no stored cases.
        OptionError: if a case does not fit.
    """
    bundle = open_bundle(path, allow_failed=True)
    contracts = {entry.contract.graph: entry.contract for entry in bundle.manifest.graphs.values()}
    contracts |= {name: entry.contract for name, entry in bundle.manifest.of_format("onnx").items()}
    if level is None and not own:
        cases = {name: stored.plan for name, stored in read_stored(bundle.folder / STORED).items()}
    else:
        mine = read_cases(own, list(contracts.values()))
        entries = bundle.manifest.graphs.values()
        flexible = {entry.contract.graph: entry.contract for entry in entries if FORMATS[entry.format].flexible}
        cases = {
            name: tuple(
                every_case(
                    contract,
                    level or "standard",
                    mine.get(name, ()),
                    flexible=flexible.get(name),
                    present=contracts,
                )
            )
            for name, contract in contracts.items()
        }
    return BundlePlan(
        bundle.folder,
        {
            name: tuple({"name": case.name, "group": case.group, "words": case.words} for case in plan)
            for name, plan in cases.items()
        },
    )


def _formats(bundle: Bundle, asked: Sequence[str]) -> list[Format]:
    present = sorted({entry.format for entry in bundle.manifest.graphs.values()})
    if not present:
        raise BundleError(f"{bundle.folder} holds no graphs", "export it again")
    for name in asked:
        if name not in present:
            raise OptionError(f"{bundle.folder} has no {name} files", f"choose from {', '.join(present)}")
    chosen = [FORMATS[name] for name in dict.fromkeys(asked or present) if asked or not FORMATS[name].runs_code]
    if not chosen:
        raise OptionError(
            f"{bundle.folder} has only {' and '.join(present)} files, and opening these can run code",
            f"if you trust their source, add --format {present[0]}",
        )
    return chosen


def _verify_stored(
    bundle: Bundle, formats: Sequence[Format], verbose: bool, progress: Callable[[str], None]
) -> ParityReport:
    stored = read_stored(bundle.folder / STORED)
    reports: list[GraphReport] = []
    for known in formats:
        entries = bundle.manifest.of_format(known.name)
        keys = {(name, lifted): key_of(known, name, lifted=lifted) for name in entries for lifted in (False, True)}
        missing = sorted({name for (name, _), key in keys.items() if key not in stored})
        if missing:
            raise BundleError(
                f"{bundle.folder / STORED} has no cases for {', '.join(missing)}", "export the bundle again"
            )
        for name, entry in entries.items():
            progress(f"Verifying {entry.file}")
            held: dict[str, list[Run]] = {}
            for run in runs_of(known, entry.contract, entries, bundle.folder, verbose):
                held.setdefault(keys[name, run.lifted], []).append(run)
            path = bundle.folder / entry.file
            for key, runs in held.items():
                cases = stored[key]

                def measured(number: int, cases: StoredCases = cases) -> Mapping[str, Expected]:
                    return rounded_otherwise(cases.expected[number])

                reports += verify_file(
                    path,
                    entry.contract,
                    cases.plan,
                    cases.expected,
                    runs,
                    format_name=known.name,
                    measure=measured if known.made_of else None,
                )
    return ParityReport(tuple(reports))


def _verify_rebuilt(
    bundle: Bundle,
    formats: Sequence[Format],
    level: str,
    own: Sequence[Path | str],
    verbose: bool,
    progress: Callable[[str], None],
    factory: str | None,
) -> ParityReport:
    """Compare the files with the model, rebuilt in PyTorch from the weights in the bundle."""
    from .bundle.rebuild import rebuild
    from .locate.places import explained
    from .parity.prove import Request, prove

    with quiet(verbose):
        progress("Rebuilding the model")
        source = rebuild(bundle, factory)
        graphs = source.graphs
        cases = read_cases(own, [graph.contract for graph in graphs.values()])
        request = Request(level, cases, verbose, kept=bundle.manifest.kept)
        names = [known.name for known in formats]
        with source.tracing():
            report, _ = prove(source.model, graphs, names, bundle.folder, request, progress=progress)
            return explained(report, graphs, bundle.folder)
