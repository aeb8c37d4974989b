"""``verify``: a bundle is whole, and its graphs still give what PyTorch gave. No torch here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BundleError
from .manifest import MANIFEST, sha256
from .opened import open_bundle
from .report import ParityReport
from .stored import STORED, read_stored
from .verify import verify_onnx


@dataclass(frozen=True)
class BundleCheck:
    """What :func:`verify_bundle` found.

    Attributes:
        bundle: the folder.
        report: parity of each graph.
        manifest_sha256: the manifest's digest; the manifest holds that of every other file.
        seconds: how long it took.
    """

    bundle: Path
    report: ParityReport
    manifest_sha256: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether all graphs passed."""
        return self.report.passed

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "passed": self.passed,
            "bundle": str(self.bundle),
            "graphs": self.report.to_dict()["graphs"],
            "manifest_sha256": self.manifest_sha256,
            "seconds": self.seconds,
        }


def verify_bundle(
    path: str | Path, *, verbose: bool = False, progress: Callable[[str], None] = lambda _: None
) -> BundleCheck:
    """Check every file of the bundle at ``path``, then run its stored reference cases, in onnxruntime alone.

    Args:
        path: the folder.
        verbose: let onnxruntime's own messages through.
        progress: told what is being done.

    Raises:
        BundleError: where it is not a bundle, not whole, or has no reference cases.
    """
    start = time.perf_counter()
    progress("Checking the files")
    bundle = open_bundle(path, allow_failed=True)
    stored = read_stored(bundle.folder / STORED)
    missing = [name for name in bundle.manifest.graphs if name not in stored]
    if missing:
        raise BundleError(f"{bundle.folder / STORED} has no cases for {', '.join(missing)}", "export the bundle again")
    reports = []
    for name, entry in bundle.manifest.graphs.items():
        progress(f"Verifying {entry.file}")
        cases = stored[name]
        reports += verify_onnx(bundle.folder / entry.file, entry.contract, cases.plan, cases.expected, verbose=verbose)
    digest = sha256(bundle.folder / MANIFEST)
    return BundleCheck(bundle.folder, ParityReport(tuple(reports)), digest, round(time.perf_counter() - start, 3))
