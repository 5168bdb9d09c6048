"""Hostile sources, topics, registries, signals, folders and declarations, in bounded time and memory."""

from __future__ import annotations

import pytest

SECONDS = 120
"""A hang fails by name. Kernels are compiled in less, even if none are cached."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/security" in item.nodeid and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
