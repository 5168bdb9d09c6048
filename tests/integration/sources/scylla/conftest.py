"""Sources are closed: each keeps a connection, and threads that wake up ten times a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.sources.scylla.captured import close_sources


@pytest.fixture(autouse=True)
def closed_sources() -> Iterator[None]:
    """Close the sources that a test built."""
    yield
    close_sources()
