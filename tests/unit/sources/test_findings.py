"""Findings about many tables are one line for each kind."""

from __future__ import annotations

from airflow_cdc_provider.sources.findings import grouped


def test_what_is_said_of_several_names_is_one_line() -> None:
    again = "is selected again: only a new snapshot has what it missed"
    tables = [f"s.t{number}" for number in range(300)]
    lines = grouped(
        [("s.a", again), ("m", "has version 2"), ("s.e:", "[CDC-ERROR] no"), *((t, again) for t in tables)]
    )
    assert lines == [
        "s.a, s.t0, s.t1, s.t2, s.t3, s.t4, s.t5, s.t6, s.t7, s.t8 and 291 more are selected again: only a "
        "new snapshot has what it missed",
        "m has version 2",
        "s.e: [CDC-ERROR] no",
    ]
