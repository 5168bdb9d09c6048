"""Examples of hypothesis strategies for tests whose steps are too slow to be repeated and shrunk."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st


def draw(strategy: st.SearchStrategy[Any], rng: random.Random) -> Any:
    """Draw one example, without the machinery of a test."""
    found: list[Any] = []

    @seed(rng.randrange(1 << 30))
    @settings(max_examples=3, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def take(value: Any) -> None:
        found.append(value)

    take()
    return found[-1]
