"""Stages on topics, on real servers: events sent once more, and topics compared with mirrors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.topics.rules import create_topics
from server_kit import KafkaServer
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.debezium_messages import send
from tests.integration.jobs.publishing import declaration, make_topics, plain, read, with_broker

if TYPE_CHECKING:
    from pymongo.database import Database

pytestmark = pytest.mark.integration


def values(server: KafkaServer, topics: list[str]) -> list[tuple[bytes | None, str | None]]:
    found = [(one.key(), one.value()) for one in read(server, topics)]
    return sorted(
        ((key, plain(value.decode() if value is not None else None)) for key, value in found), key=repr
    )


def test_events_are_sent_again_and_topics_equal_mirrors_until_somebody_writes_to_them(
    run_stage: RunStage, database: Database, connection: dict[str, Any], kafka_server: KafkaServer
) -> None:
    both = with_broker(connection, kafka_server)
    orders = make_topics(kafka_server, database, "orders")[1]
    declared = declaration(database, {"records_per_commit": 7}, transactions=False)
    table = f"{database.name}.orders"
    database.orders.insert_many([{"_id": n, "n": n * 2**40, "x": 0.1 * n, "s": "é"} for n in range(30)])
    assert run_stage("sync", declared, both).ok
    for turn in range(2):
        database.orders.update_many({"_id": {"$lt": 5}}, {"$set": {"turn": turn, "sub": {"d": [turn, None]}}})
        database.orders.delete_one({"_id": 10 + turn})
        assert run_stage("sync", declared, both).ok
    before = run_stage("offsets", declared, both, action="show").published
    assert before is not None

    equal = run_stage("compare_topics", declared, both)
    assert equal.ok, equal.error
    assert [(one.table, one.note, one.mirror_rows) for one in equal.tables] == [(table, "equal", 28)]

    again = f"again_{database.name}"
    copy = f"{again}.{table}"
    brokers = both["kafka"]
    created = create_topics(Connector.from_dict(declared), [table, f"{database.name}.new"], brokers)
    new = orders.replace("orders", "new")
    assert (created.created, created.existing) == ((new,), (orders,))
    assert read(kafka_server, [new]) == []
    sent = run_stage("replay", declared, both, topic_prefix=again).replayed
    assert sent is not None
    assert (sent.first_batch, sent.last_batch) == (1, before.batch)
    assert values(kafka_server, [copy]) == values(kafka_server, [orders])
    assert run_stage("compare_topics", declared, both, topic_prefix=again).ok
    last = run_stage("replay", declared, both, first_batch=before.batch, topic_prefix=again).replayed
    assert last is not None
    assert last.records == 7, "five updates, a delete and its tombstone"
    assert len(read(kafka_server, [copy])) == sent.records + 7
    assert run_stage("offsets", declared, both, action="show").published == before, "its place stays"
    with pytest.raises(ConfigurationError, match="there are no such batches to replay"):
        run_stage("replay", declared, both, first_batch=before.batch + 1)
    assert not run_stage("replay", declared, both, first_batch=before.batch).findings
    run_stage("offsets", declared, both, action="publish", batch="next")
    assert run_stage("offsets", declared, both, action="show").published == before

    send(
        kafka_server,
        orders,
        ('{"id":"1"}', None),
        ('{"id":"10"}', '{"op":"c","after":"{\\"_id\\": 10}"}'),
        ('{"id":"2"}', '{"op":"u","after":"{\\"_id\\": 2,\\"n\\": 1,\\"secret\\": 5}"}'),
    )
    differs = run_stage("compare_topics", declared, both)
    assert (differs.ok, differs.error_code) == (False, "DIFFERENT")
    assert differs.tables[0].differences == 3
    assert differs.tables[0].note == '{"equal": 26, "only_topic": 1, "only_mirror": 1, "different": 1}'
    elsewhere = run_stage("compare_topics", declared, both, topics={table: ["elsewhere"]})
    assert f"{table}: there is no topic elsewhere" in elsewhere.error
