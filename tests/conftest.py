"""What tests of several folders share: one thread, and exports that are made once a session."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator

import pytest
import torch

from exported_models import EVERY_KIND, Exported, build
from kept import kept_root

LONGEST = "test_every_fault.py"  # a file is run in one process, and all its tests are short


def pytest_configure() -> None:
    """Before other processes start, which are to use the same folder. What PyTorch says while it traces is left out."""
    kept_root()
    logging.getLogger("torch.__trace").setLevel(logging.CRITICAL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file first, then those with slow tests: at the end, one process would run them while others wait."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name != LONGEST, item.path not in slow))


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Models here are tiny: threads would spend more time waiting for each other than working."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def exports() -> Callable[[str], Exported]:
    """The model of a kind with its files; see ``exported_models.EVERY_KIND``."""
    made: dict[str, Exported] = {}

    def get(kind: str) -> Exported:
        if kind not in made:
            folder = kept_root() / re.sub(r"\W+", "-", kind)
            folder.mkdir(exist_ok=True)
            made[kind] = Exported(build(kind), EVERY_KIND[kind][1], folder)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def translation(exports: Callable[[str], Exported]) -> Exported:
    """The translation model with its files."""
    return exports("translation")
