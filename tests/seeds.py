"""Seeds of tests that write at random."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(first: int, *others: int) -> list[Any]:
    """Return parameters of a test: ``make test`` runs the first seed, ``make test-long`` the others."""
    return [first, *(pytest.param(seed, marks=pytest.mark.long) for seed in others)]
