"""Report files of ``--junit`` and ``--html``: their places are checked before the work, and they are written whole.

No torch here.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..bundle.manifest import read_manifest
from ..bundle.staging import is_bundle
from ..bundle.versions import versions
from ..errors import OptionError
from ..parity.report import Finding, GraphReport, ParityReport
from .junit import junit_xml
from .page import parity_page

PREFIX = ".mytx-new-"


def check_places(files: Mapping[str, Path | None], bundles: Sequence[Path], inputs: Sequence[Path | None] = ()) -> None:
    """Check that each of ``files`` can be written and is not inside a bundle, which must hold nothing else.

    Args:
        files: paths by option name; None for an option that is not given.
        bundles: folders that are or will be bundles.
        inputs: files that the command reads; None for a file that is not given.

    Raises:
        OptionError: if a file cannot be written there; the message names its option.
    """
    taken = {_real(path): "read" for path in inputs if path is not None}
    for option, path in files.items():
        if path is None:
            continue
        place = _real(path)
        folders = [place, *place.parents]
        inside = next((folder for folder in map(_real, bundles) if folder in folders), None)
        inside = inside or next((folder for folder in folders if is_bundle(folder)), None)
        if inside is not None:
            raise OptionError(
                f"{option} {path} is in the bundle {inside}, which must hold nothing else", "choose a place outside it"
            )
        if place in taken:
            raise OptionError(f"{option} {path} is {taken[place]} already", f"choose another place for {option}")
        taken[place] = "written"
        _check_place(option, path, place)


def write_junit(path: Path, report: ParityReport, manifest_sha256: str) -> None:
    """Write ``report`` as JUnit XML, with the SHA-256 of the bundle's manifest.

    Raises:
        OptionError: if the file cannot be written.
    """
    write_whole("--junit", path, junit_xml(report, versions() | {"manifest_sha256": manifest_sha256}))


def write_html(path: Path, report: ParityReport, bundle: Path, manifest_sha256: str) -> None:
    """Write ``report`` as an HTML page, for a bundle that was verified again.

    Raises:
        OptionError: if the file cannot be written.
    """
    page = parity_page(report, read_manifest(bundle), manifest_sha256=manifest_sha256, here=versions())
    write_whole("--html", path, page)


@contextlib.contextmanager
def refusing(junit: Path | None, what: str) -> Iterator[None]:
    """If the block raises, write JUnit XML in which ``what`` is a failing test, and raise again.

    Without this, CI would show the file of an older run that passed.
    """
    try:
        yield
    except BaseException as error:
        if junit is not None:
            words = "interrupted" if isinstance(error, KeyboardInterrupt) else ": ".join(str(error).splitlines())
            finding = Finding("runtime", words or type(error).__name__)
            refused = GraphReport(what, "", "refused", 0, 0, 0.0, 0.0, "", False, (finding,))
            with contextlib.suppress(OptionError):  # the error of the block is the one to report
                write_whole("--junit", junit, junit_xml(ParityReport((refused,)), versions()))
        raise


def write_whole(option: str, path: Path, content: bytes) -> None:
    """Write a temporary file beside ``path`` and rename it, so that an older file stays whole until then.

    Raises:
        OptionError: if the file cannot be written; the message names ``option``.
    """
    place = _real(path)
    try:
        _write(place, content)
    except OSError as error:
        raise OptionError(
            f"{option} {path} cannot be written: {error.strerror}", "free some space, or choose another place"
        ) from error


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _check_place(option: str, path: Path, place: Path) -> None:
    hint = f"choose another place for {option}"
    if place.is_dir():
        raise OptionError(f"{option} {path} is a folder", f"{option} takes a file")
    if os.path.lexists(place) and not place.is_file():
        raise OptionError(f"{option} {path} is not a file", hint)
    if not place.parent.is_dir():
        raise OptionError(f"{option} {path}: there is no folder {path.parent}", f"make it, or {hint}")
    if place.exists() and not os.access(place, os.W_OK):
        raise OptionError(f"{option} {path} is read-only", f"make it writable, or {hint}")
    try:
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=PREFIX):
            pass
    except OSError as error:
        raise OptionError(f"{option} {path} cannot be written: {error.strerror}", hint) from error


def _write(place: Path, content: bytes) -> None:
    number, name = tempfile.mkstemp(dir=place.parent, prefix=PREFIX)
    new = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        new.chmod(place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask())
        new.replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def _umask() -> int:
    """The process's umask. mkstemp makes a file for its owner only, but in CI another user reads it."""
    umask = os.umask(0o022)
    os.umask(umask)
    return umask
