"""``parity.html``: one self-contained page that shows failures first, and every case."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from made_reports import EVIL, GROUPS, case, doubted, lifted, manifest, report, row, unloadable
from mytx.exporter.parity.report import Finding, GraphReport, ParityReport
from mytx.exporter.report.page import MOST_FAILURES, TEMPLATES, parity_page
from mytx.exporter.report.plots import RunCase, histogram_of, plots_of
from repository import ROOT

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EMPTY = {"meta", "link", "br"}  # elements that have no end


class Page(HTMLParser):
    """The page as elements and text, checked on the way: every element is closed, in its turn."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.text = ""
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.paths: list[list[str]] = []
        self._open: list[str] = []
        self.feed(content.decode())
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self._open):
            self.text += " ".join(data.split()) + " "

    def classes(self, tag: str) -> list[set[str]]:
        return [set(attributes.get("class", "").split()) for name, attributes in self.elements if name == tag]

    @property
    def marks(self) -> Counter[bool]:
        """How many cases are drawn, by whether they passed."""
        found = self.classes("circle") + self.classes("path")
        return Counter("bad" not in classes for classes in found if "mark" in classes)


def page(found: ParityReport | None, **changes: object) -> Page:
    return Page(parity_page(found, manifest(**changes)))


def test_a_report_that_passed_says_yes_and_lists_no_failures() -> None:
    shown = page(report(row(), lifted()))
    assert "✓ Yes, passed." in shown.text
    assert "FAILED" not in shown.text
    assert "What failed" not in shown.text
    assert "0.40 of 4" in shown.text
    assert "encoder.onnx ✓ passed" in shown.text


def test_every_case_is_drawn_once_in_each_of_the_two_plots() -> None:
    failed = Finding("rounding", "off", "03")
    shown = page(report(row(failed), row(runtime="one thread"), lifted(), row(graph="full")))
    plots, files = 2, 2
    assert shown.marks == {True: plots * (files * len(GROUPS) - 1), False: plots}
    assert sum("case" in text for text in shown.text.split()) > 0


def test_what_failed_comes_before_everything_else_with_case_output_words_and_runtimes() -> None:
    place = Finding("place", "decoder.layers.1.norm leaves the model first: node_7, in case 03")
    finding = Finding("rounding", "case 03 (batch 4), logits at [0, 3]: 5 where the model gives 4", "03")
    shown = page(report(row(), row(finding, place, graph="decoder"), replace(lifted(), graph="decoder")))
    text = shown.text
    assert "✗ No, failed. decoder.onnx: do not deploy this." in text
    first = text.index("What failed")
    assert first < text.index("Where it begins. decoder.layers.1.norm") < text.index("Rounding (run in float32).")
    assert text.index(finding.message) < text.index("Case 03, output logits") < text.index("What was tried")
    assert "Seen in onnxruntime" in text
    assert "decoder.onnx ✗ FAILED" in text
    assert "encoder.onnx ✓ passed" in text


def test_the_same_finding_in_all_runtimes_is_listed_once() -> None:
    finding = Finding("interface", "input src is missing")
    shown = page(report(row(finding), lifted(finding)))
    assert shown.text.count("input src is missing") == 1
    assert "Seen in all 2 ways to run it" in shown.text


def test_what_was_not_proven_is_not_called_wrong_and_not_called_passed() -> None:
    shown = page(report(row(), replace(doubted(), graph="full")))
    assert "? Not proven." in shown.text
    assert "What is not proven" in shown.text
    assert "full.onnx ? not judged" in shown.text
    assert "Yes, passed" not in shown.text


def test_what_was_not_verified_says_so() -> None:
    shown = page(None)
    assert "? Not verified." in shown.text
    assert "passed" not in shown.text
    assert "norm_first" in shown.text


@pytest.mark.parametrize("found", [report(), report(replace(row(), passed=False, details=()))])
def test_nothing_that_was_verified_and_no_finding_at_all_still_failed(found: ParityReport) -> None:
    assert "✗ No, failed." in page(found).text


def test_a_case_without_a_number_is_drawn_at_the_top_as_failed() -> None:
    shown = page(report(unloadable()))
    assert shown.marks == {False: 2 * len(GROUPS)}
    assert "no number" in shown.text


def test_more_failures_than_anybody_reads_are_counted() -> None:
    findings = [Finding("runtime", f"problem {number}") for number in range(MOST_FAILURES + 5)]
    shown = page(report(row(*findings)))
    assert "And 5 more, which are not listed here." in shown.text
    assert sum("failure" in classes for classes in shown.classes("div")) == MOST_FAILURES


def test_names_and_messages_are_text_whatever_they_hold() -> None:
    details = (case(0, words=EVIL, output=EVIL, group=EVIL, message=EVIL, verdict="fail"),)
    bad = row(Finding("rounding", EVIL, "00"), details=details, runtime=EVIL, worst_case=EVIL, notes=(EVIL,))
    evil = {"kind": EVIL, "parameters": EVIL, "weights_sha256": EVIL}
    content = parity_page(
        report(bad),
        manifest(model=evil, tools={EVIL: EVIL}, assumed=({"name": EVIL, "value": EVIL, "source": EVIL},)),
        here={EVIL: EVIL},
        manifest_sha256=EVIL,
    )
    assert b"<script" not in content
    assert "script" not in {tag for tag, _ in Page(content).elements}
    assert content.count(b"&lt;script&gt;") > 10


def test_the_page_needs_nothing_else() -> None:
    shown = page(report(row(), row(Finding("rounding", "off", "03"), graph="full")))
    tags = {tag for tag, _ in shown.elements}
    assert not {"script", "img", "iframe", "object", "embed", "form"} & tags
    for tag, attributes in shown.elements:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("href", "src"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), tag
    style = re.search(r"<style>(.*?)</style>", parity_page(report(row()), manifest()).decode(), flags=re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_every_link_and_label_leads_to_a_place_on_the_page() -> None:
    shown = page(report(row(), row(Finding("rounding", "off", "03"), graph="full"), row(format="eager")))
    places = {attributes["id"] for _, attributes in shown.elements if "id" in attributes}
    links = {attributes["href"][1:] for tag, attributes in shown.elements if tag == "a"}
    labels = {attributes["aria-labelledby"] for _, attributes in shown.elements if "aria-labelledby" in attributes}
    assert links | labels <= places
    assert len(links) >= 3


def test_versions_hashes_and_what_was_assumed_are_there() -> None:
    content = parity_page(report(row()), manifest(), manifest_sha256="99" * 32, here={"onnxruntime": "2.0"})
    text = Page(content).text
    for word in ("ab" * 32, "cd" * 32, "ef" * 32, "99" * 32, "norm_first", "False", "(default)", "2.0", "1,234"):
        assert word in text


def test_a_manifest_that_says_little_still_gives_a_page() -> None:
    assert "translation" not in page(report(row()), model={}, tools={}, files=(), assumed=({},)).text


def test_without_pytorchs_own_errors_the_page_says_that_they_are_not_known() -> None:
    assert "PyTorch's own are not known" in page(report(row(own_spread=()))).text
    shown = page(report(row(spread=(), own_spread=())))
    assert "errors of the file, in float32" not in shown.text


def test_an_installed_package_has_the_templates() -> None:
    """An editable install has them anyway; a wheel has what setup.cfg says."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    pattern = settings["options.package_data"]["mytx.exporter.report"]
    assert sorted(path.name for path in TEMPLATES.parent.glob(pattern)) == ["parity.css", "parity.html", "plots.html"]


def test_jinja2_is_loaded_only_for_a_page() -> None:
    code = "import sys, mytx.exporter.cli.main, mytx.exporter.report.files; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the geometry ----------------------------------------------------------------------------------------------------


def test_marks_rise_with_the_error_and_no_two_share_a_place() -> None:
    errors = [0.0, 1e-8, 1e-7, 1e-6, 1e-3, float("inf")]
    cases = [RunCase(case(number, max_abs_error=error), "a") for number, error in enumerate(errors)]
    for plot in plots_of(cases):
        heights = [mark.y for mark in plot.marks]
        assert heights == sorted(heights, reverse=True)
        assert len({mark.x for mark in plot.marks}) == len(cases)
        assert all(44 < mark.x < 552 and 0 < mark.y < 250 for mark in plot.marks)
    assert plots_of(cases)[0].axis == "length: the longest of source, target"


def test_cases_of_one_size_stand_together_under_its_label() -> None:
    cases = [RunCase(case(number, sizes={"batch": batch}), "a") for number, batch in enumerate([2, 1, 2, 7, 1, 2])]
    plot = plots_of(cases)[1]
    assert [tick.text for tick in plot.columns] == ["1", "2", "7"]
    names = [re.findall(r"case (\d+)", mark.words)[0] for mark in plot.marks]
    assert names == ["01", "04", "00", "02", "05", "03"]


def test_bars_have_heights_in_proportion_and_none_is_invisible() -> None:
    spread = (0,) * 10 + (1, 999_999) + (0,) * 8
    found = histogram_of(spread, ())
    assert found is not None
    small, large = found.bars
    assert (small.height, found.own) == (1.0, ())
    assert large.height > 100
    assert "999,999 of 1,000,000" in large.words
    assert histogram_of((), ()) is histogram_of((0, 0), ()) is None


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
@pytest.mark.parametrize("rows", [[row(), lifted()], [row(Finding("rounding", EVIL, "03"), notes=(EVIL,))]])
def test_a_browser_shows_it_without_an_error(rows: list[GraphReport], tmp_path: Path) -> None:
    file = tmp_path / "parity.html"
    file.write_bytes(parity_page(report(*rows), manifest()))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command = [str(BROWSER), *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    drawn = re.findall(r'<(?:circle|path) class="mark[^"]*"', done.stdout)
    assert len(drawn) == 2 * len(GROUPS)
    assert "<script" not in done.stdout
