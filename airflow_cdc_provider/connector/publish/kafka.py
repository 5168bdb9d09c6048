"""Options of publishing to Kafka: connection, delivery and handling of rejected records.

Brokers and credentials are in the Airflow connection; only tuning settings are passed through here.
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
    """Options of publishing to Kafka."""

    connection: str = option(
        "Airflow connection of type kafka; its extra has librdkafka settings: bootstrap.servers, SASL, TLS. "
        "Empty: publishing is disabled",
        "",
    )
    delivery: Literal["exactly_once", "at_least_once"] = option(
        "exactly_once: records and position are written in one transaction; consumers with isolation.level "
        "read_committed read each record once; at_least_once: no transactions; a killed run sends some "
        "records again",
        "exactly_once",
    )
    mode: Literal["changes", "after_merge"] = option(
        "changes: publish each change; after_merge: publish the rows changed by merges, complete and as they "
        "are in the mirror, once per run",
        "changes",
    )
    start: Literal["earliest", "latest"] = option(
        "Start of the first run. earliest: all batches of the changes table, or all rows of the mirrors with "
        "after_merge; latest: only later batches or merges",
        "earliest",
    )
    on_record_error: Literal["dead_letters", "fail"] = option(
        "Handling of records that can't be built, or that brokers or the registry refuse permanently. "
        "dead_letters: write them to the table <connector>_dead_letters, report them and continue; fail: "
        "fail the run with the record's topic and key",
        "dead_letters",
    )
    positions_topic: str = option(
        "Compacted topic for the publishing position, used by this connector only; created if missing. "
        "Default: <topic prefix>.cdc-positions",
        "",
        check=wrong_topic,
    )
    positions_replication: int = option(
        "Replication factor of the created positions topic; -1: publish.topics.replication", -1, minimum=-1
    )
    transactional_id: str = option(
        "Prefix of transactional.id, <this>.<slice>; must be unique. Default: the connector's name",
        "",
        check=wrong_topic,
    )
    records_per_commit: int = option("Approximate number of records per transaction", 50_000, minimum=1)
    slices: int = option(
        "Number of parallel producers, which run as Spark tasks; 1: the Spark driver publishes. Events are "
        "partitioned by row (Vitess: by shard; ScyllaDB: by table), so events of a row stay in order; "
        "options that require a total order are rejected",
        1,
        minimum=1,
    )
    retry_interval_seconds: float = option(
        "Maximum interval between attempts to connect to the brokers", 1.0, minimum=0.01
    )
    retry_timeout_seconds: float = option(
        "How long a run retries unavailable brokers or an unavailable registry before it fails; no data is "
        "lost",
        300.0,
        minimum=0,
    )
    producer: Mapping[str, Any] = option(
        "librdkafka's tuning settings of producers: linger.ms, batch.size, compression.type, "
        "message.max.bytes ... Secrets are not allowed",
        {},
    )
    consumer: Mapping[str, Any] = option(
        "librdkafka's tuning settings of consumers, which read positions", {}
    )

    @property
    def enabled(self) -> bool:
        """Whether events are published."""
        return bool(self.connection)

    @property
    def after_merge(self) -> bool:
        """Whether rows of mirrors are published instead of changes."""
        return self.mode == "after_merge"


def validate_kafka_options(kafka: KafkaOptions, *, envelope: str, reread: bool) -> None:
    """Validate client settings, and reject envelopes that can't be published incrementally.

    Args:
        kafka: The options.
        envelope: Format of events.
        reread: Whether rows are read again at the source.

    Raises:
        ConfigurationError: Names the first problem.
    """
    for name in ("producer", "consumer"):
        if expected := wrong_tuning(getattr(kafka, name)):  # the value may be a secret
            raise ConfigurationError(f"invalid value for option publish.kafka.{name}", expected=expected)
    if not kafka.enabled:
        return
    if envelope == "datastax" and not reread and not kafka.after_merge:
        raise ConfigurationError(
            "envelope datastax requires the complete history of changes, but merged batches are deleted",
            expected="publish.cassandra.reread: true, which reads each changed row at the source",
            remedy="or publish.kafka.mode: after_merge; or another publish.envelope",
        )
