"""Tests that take a contract run for each graph of each kind of model."""

from __future__ import annotations

import pytest

from mytx.exporter.contracts.contract import Contract
from plans import CONTRACTS, FLEXIBLE


@pytest.fixture(params=CONTRACTS.values(), ids=CONTRACTS.keys())
def contract(request: pytest.FixtureRequest) -> Contract:
    """The contract of a graph that does not decode."""
    found: Contract = request.param
    return found


@pytest.fixture(params=FLEXIBLE.values(), ids=FLEXIBLE.keys())
def flexible(request: pytest.FixtureRequest) -> Contract:
    """The same in formats in which inputs may be left out."""
    found: Contract = request.param
    return found
