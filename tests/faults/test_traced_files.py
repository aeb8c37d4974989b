"""Control for faults of tracing: a traced file of the unchanged model passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from exported_models import Exported
from fault_tracing import traced
from mytx.exporter.graphs.modules import Decode, Encode, Translate
from subject import Subject


@pytest.mark.parametrize(("name", "module"), [("encoder", Encode), ("decoder", Decode), ("full", Translate)])
def test_a_trace_of_the_model_itself_has_no_fault(
    name: str, module: type, translation: Exported, tmp_path: Path
) -> None:
    subject = Subject(translation, name, tmp_path / "traced")
    traced(module)(subject)
    findings = {finding.message for report in subject.verify() for finding in report.findings}
    assert findings == set()
