"""What tests of the core share."""

import pytest

from deva_optim.core import linalg


@pytest.fixture(params=["host", "device"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way a step takes where the host may look at values, and where it may not."""
    monkeypatch.setattr(linalg, "host_sees", lambda device: request.param == "host")
    way: str = request.param
    return way
