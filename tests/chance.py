"""How many examples property tests try, and single examples for tests too slow to be repeated and shrunk."""

from __future__ import annotations

import os
import random
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st


def examples(count: int) -> int:
    """Return a quarter of a property's examples: each run draws others. ``make test-long`` tries them all."""
    return count if os.environ.get("CDC_EXAMPLES") == "all" else count // 4


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
