"""Options of publishing to Kafka: where to, how, and what becomes of what the broker refuses.

The broker and its login stand in an Airflow connection; what is passed through here are tuning settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.settings import wrong_topic, wrong_tuning
from airflow_cdc_provider.options import option


@dataclass(frozen=True)
class KafkaOptions:
    """Where and how events are published."""

    connection: str = option(
        "Airflow connection of type kafka, whose extra has librdkafka's settings: bootstrap.servers, login, "
        "TLS. Empty: nothing is published",
        "",
    )
    delivery: Literal["exactly_once", "at_least_once"] = option(
        "exactly_once: records and the position after them in one transaction, which readers with "
        "isolation.level read_committed see once; at_least_once: without transactions, a run that was killed "
        "sends some records again",
        "exactly_once",
    )
    what: Literal["changes", "after_merge"] = option(
        "changes: each change; after_merge: the rows that merges changed, whole and as they are in the "
        "mirror then, once per run",
        "changes",
    )
    start: Literal["earliest", "latest"] = option(
        "What the first run publishes: earliest: all batches that the changes table has, after merges all "
        "rows of the mirrors; latest: what is captured, after merges what is merged, from now on",
        "earliest",
    )
    refused: Literal["fail", "quarantine"] = option(
        "What becomes of records that the broker refuses for good, such as too large ones, and of those that "
        "transforms and converters can't make: fail: the run fails and says which; quarantine: they are set "
        "apart in the table <connector>_refused, counted and told, and publishing goes on",
        "fail",
    )
    positions_topic: str = option(
        "Compacted topic of the connector's own that holds how far it is published; default: "
        "<topic prefix>.cdc-positions. It is made if it is missing",
        "",
        check=wrong_topic,
    )
    positions_replication: int = option(
        "Copies of that topic when it is made; -1: as publish.topics.replication", -1, minimum=-1
    )
    transactional_id: str = option(
        "Leads the transactional id, <this>.<slice>, which no other connector may have; default: the "
        "connector's name",
        "",
        check=wrong_topic,
    )
    records_at_once: int = option("Records of one transaction, about", 50_000, minimum=1)
    slices: int = option(
        "How many producers publish side by side, as tasks of Spark. More than one part the events by the "
        "rows that they are of (of Vitess by shard, of ScyllaDB by table): those of a row stay in order, and "
        "options that need all events in one order are refused. 1: Spark's driver publishes",
        1,
        minimum=1,
    )
    retry_interval_seconds: float = option(
        "The longest time from one try to reach the brokers to the next", 1.0, minimum=0.01
    )
    retry_seconds: float = option(
        "How long a run waits for brokers, or a registry, that don't answer before it fails, to be run "
        "again; nothing is lost",
        300.0,
        minimum=0,
    )
    producer: Mapping[str, Any] = option(
        "Settings of librdkafka for producers, passed on as they are: linger.ms, batch.size, "
        "compression.type, message.max.bytes ... None that carries a secret",
        {},
    )
    consumer: Mapping[str, Any] = option("Likewise for consumers, which read the positions", {})

    @property
    def enabled(self) -> bool:
        """Whether events are published."""
        return bool(self.connection)

    @property
    def sets_apart(self) -> bool:
        """Whether records that can't be made, or that the broker refuses, are set apart."""
        return self.enabled and self.refused == "quarantine"

    @property
    def after_merge(self) -> bool:
        """Whether rows of mirrors are published, not changes."""
        return self.what == "after_merge"


def refuse_clashing_kafka(kafka: KafkaOptions, *, envelope: str, reread: bool) -> None:
    """Refuse what can't be published batch after batch.

    Args:
        kafka: The choices.
        envelope: Form of the events.
        reread: Whether rows are read again at the source.

    Raises:
        ConfigurationError: Names the first one.
    """
    for name in ("producer", "consumer"):
        if expected := wrong_tuning(getattr(kafka, name)):  # what was found may be a secret
            raise ConfigurationError(f"option publish.kafka.{name} is wrong", expected=expected)
    if not kafka.enabled:
        return
    if envelope == "datastax" and not reread and not kafka.after_merge:
        raise ConfigurationError(
            "envelope datastax needs all changes that there ever were, and batches are let go",
            expected="publish.cassandra.reread: true, which reads each changed row at the source",
            remedy="or publish.kafka.what: after_merge; or another publish.envelope",
        )
