"""The chart rendered for five sets of values. `make test-chart` sets all up."""

from __future__ import annotations

import pytest

from support.chart_pods import SETS, Manifest, rendered


@pytest.fixture(params=SETS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    """The manifests of each set."""
    return rendered(request.param)
