"""The verdict on each fault, once a session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examine import Verdict, examine
from exported_models import Exported
from fault import Fault
from subject import COUNTS, collect_less


@pytest.fixture(scope="session")
def verdict_on(
    exports: Callable[[str], Exported], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Fault], Verdict]:
    known: dict[str, Verdict] = {}

    def get(fault: Fault) -> Verdict:
        if fault.name not in known:
            exported = exports(fault.model)
            exported.expected(fault.graph)
            collect_less()
            known[fault.name] = examine(
                fault, exported, tmp_path_factory.mktemp("fault") / "planted", others=False, enough=COUNTS
            )
        return known[fault.name]

    return get
