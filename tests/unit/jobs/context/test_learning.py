"""When a job teaches its source what is recorded of the schema."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_cdc_provider.changes.record import SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.context.tables import selected_tables
from airflow_cdc_provider.sources.schema_history import learn_schema
from tests.unit.jobs.runs import FakeSource, run_of


class Learner(FakeSource):
    """A source that counts its lessons."""

    has_schema_history = True
    lessons = 0

    def learn(self, records: Any) -> None:
        self.lessons += 1


def test_what_a_round_recorded_is_learned_before_the_next_and_nothing_twice() -> None:
    """A stream that didn't would record the same definitions again with every round, for ever."""
    newest = SimpleNamespace(batch=0)

    def lasting(kind: str) -> Any:
        assert kind == SCHEMA
        return SimpleNamespace(drop=lambda *columns: SimpleNamespace(toArrow=lambda: None))

    changes: Any = SimpleNamespace(
        state=lambda: newest, table=SimpleNamespace(exists=lambda: True), lasting=lasting
    )
    source = Learner("s.t")
    connector = Connector.from_dict({"name": "s", "source": {"type": "cassandra"}})
    run = run_of(connector, changes=changes, source=source)

    selected_tables(run.job, run.stores, source)
    learn_schema(source, changes, 0)
    assert source.lessons == 1

    newest.batch = 2
    learn_schema(source, changes, 2)
    selected_tables(run.job, run.stores, source)
    learn_schema(source, changes, 2)
    assert source.lessons == 2
