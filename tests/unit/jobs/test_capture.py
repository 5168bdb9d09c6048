"""The capture stage's loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_cdc_provider.jobs import capture as stage
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.lake.table import Head


class Source:
    """A source that has nothing to say yet."""

    def start(self) -> None: ...
    def head(self) -> dict[str, Any]:
        return {}

    def reader(self) -> None: ...
    def learn(self, records: Any) -> None: ...
    def schema_records(self) -> list[Any]:
        return []

    def schema_findings(self) -> Any: ...
    def may_land(self, reason: str) -> Any: ...
    def quarantine_reader(self) -> Any: ...
    def resumed_at(self, table: str) -> int:
        return 0


def test_stop_before_the_first_batch_is_a_clean_one() -> None:
    """There is no changes table yet, so there is no quarantine in it."""

    def no_table(kind: str) -> Any:
        raise AssertionError("read before it exists")

    changes = SimpleNamespace(
        state=lambda: ChangesState(Head(None), 0, None),
        table=SimpleNamespace(exists=lambda: False),
        lasting=no_table,
    )
    context: Any = SimpleNamespace(
        spec=SimpleNamespace(options={}),
        changes=changes,
        source=Source(),
        spark=None,
        learn=lambda through: None,
        stopping=lambda: True,
    )
    counts = stage.capture(context)
    assert (counts.batches, counts.changes, counts.quarantined) == (0, 0, 0)
