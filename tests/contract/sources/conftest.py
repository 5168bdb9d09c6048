"""Every source of this package, each with its server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.sources.harness import SourceUnderTest
from tests.contract.sources.subjects import SUBJECTS


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda kind: kind.type)
def subject(request: pytest.FixtureRequest) -> Iterator[SourceUnderTest]:
    """A source and its database, for all tests of a module."""
    subject: SourceUnderTest = request.param(request.getfixturevalue)
    yield subject
    subject.tear_down()
