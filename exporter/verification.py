"""``verify``: a bundle is whole, and its graphs still give what PyTorch gave. No torch here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
from .parity.report import EARLIER, GraphReport, ParityReport
from .parity.stored import STORED, read_stored
from .parity.verify import verify_file
from .quiet import quiet
from .runtimes.run import check_file, runs_of


@dataclass(frozen=True)
class BundleCheck:
    """What :func:`verify_bundle` found.

    Attributes:
        bundle: the folder.
        report: parity of each graph.
        manifest_sha256: the manifest's digest; the manifest holds that of every other file.
        seconds: how long it took.
        stored: whether the stored cases were run, without the model.
        factory: what the manifest says made a model that is not one of mytx's.
    """

    bundle: Path
    report: ParityReport
    manifest_sha256: str
    seconds: float
    stored: bool = True
    factory: str = ""

    @property
    def passed(self) -> bool:
        """Whether all graphs passed."""
        return self.report.passed

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "passed": self.passed,
            "bundle": str(self.bundle),
            "graphs": self.report.to_dict(details=False)["graphs"],
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
    """Check every file of the bundle at ``path``, then run its stored reference cases; for that no PyTorch is needed.

    Args:
        path: the folder.
        formats: which to open. Empty is all but those whose files can run code when they are opened
            (``torchscript`` and ``pt2``): name these only where you trust the bundle's source.
        level: compute a plan's references anew instead, in PyTorch, from the model's weights in the bundle.
        own: files with cases of your own, for which the same is done.
        factory: ``package.module:build``, to make a model that is not one of mytx's for that.
        verbose: let onnxruntime's own messages through.
        progress: told what is being done.

    Raises:
        BundleError: where it is not a bundle, not whole, or has no reference cases.
        OptionError: for a format, a plan or a case that does not fit.
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
    """``report`` with what failed when the bundle was made and does not fail now: with fewer cases, or without the
    model, or the class that it was trained in, that proves nothing.

    Raises:
        BundleError: where the manifest's own report is damaged.
    """
    try:
        earlier = ParityReport.from_dict({"graphs": bundle.manifest.parity.get("graphs", [])}).graphs
        if not fits(earlier, tuple[GraphReport, ...]):
            raise TypeError("a value is not of its type")
    except (LookupError, TypeError, ValueError) as error:
        raise BundleError(f"the report in {bundle.folder / MANIFEST} is damaged", "export the bundle again") from error
    if bundle.manifest.parity["passed"] is False and all(row.passed for row in earlier):
        raise BundleError(
            f"{bundle.folder / MANIFEST} says that parity failed, and not where", "do not deploy it: export it again"
        )
    failing = {(row.graph, row.format, row.runtime) for row in report.graphs if not row.passed}
    more = [row for row in earlier if not row.passed and (row.graph, row.format, row.runtime) not in failing]
    found = [replace(row, runtime=row.runtime + EARLIER) for row in more]
    return ParityReport((*report.graphs, *found))


@dataclass(frozen=True)
class BundlePlan:
    """The cases that the graphs of a bundle are tried on.

    Attributes:
        bundle: the folder.
        graphs: by name, each case's name, group and words.
    """

    bundle: Path
    graphs: dict[str, tuple[dict[str, str], ...]]

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {"bundle": str(self.bundle), "graphs": self.graphs}


def plan_of_bundle(path: str | Path, *, level: str | None = None, own: Sequence[Path | str] = ()) -> BundlePlan:
    """The plan of the bundle at ``path``: its stored cases, or those of a ``level`` with a user's ``own``.

    Raises:
        BundleError: where it is not a bundle, or has no reference cases.
        OptionError: for a case that does not fit.
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
                    steps="step" in contracts,
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
            f"{bundle.folder} has only {' and '.join(present)} files, and to open these can run code",
            f"where you trust their source, add --format {present[0]}",
        )
    return chosen


def _verify_stored(
    bundle: Bundle, formats: Sequence[Format], verbose: bool, progress: Callable[[str], None]
) -> ParityReport:
    stored = read_stored(bundle.folder / STORED)
    reports: list[GraphReport] = []
    for known in formats:
        entries = bundle.manifest.of_format(known.name)
        missing = [name for name in entries if name not in stored]
        if missing:
            raise BundleError(
                f"{bundle.folder / STORED} has no cases for {', '.join(missing)}", "export the bundle again"
            )
        for name, entry in entries.items():
            progress(f"Verifying {entry.file}")
            runs = runs_of(known, entry.contract, entries, bundle.folder, verbose)
            cases = stored[name]
            path = bundle.folder / entry.file
            reports += verify_file(path, entry.contract, cases.plan, cases.expected, runs, format_name=known.name)
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
    """Against references that are computed anew, from the model's weights in the bundle: this needs PyTorch."""
    from .bundle.rebuild import EXPORT_AGAIN, rebuild
    from .locate.places import explained
    from .parity.prove import Request, contract_of_file, prove

    with quiet(verbose):
        progress("Rebuilding the model")
        source = rebuild(bundle, factory)
        graphs = source.graphs
        for known in formats:
            for name, entry in bundle.manifest.of_format(known.name).items():
                if contract_of_file(known, graphs[name]) != entry.contract:
                    raise BundleError(f"{entry.file} has a contract that this mytx does not make", EXPORT_AGAIN)
        request = Request(level, read_cases(own, [graph.contract for graph in graphs.values()]), verbose)
        names = [known.name for known in formats]
        with source.tracing():
            report, _ = prove(source.model, graphs, names, bundle.folder, request, progress=progress)
            return explained(report, graphs, bundle.folder)
