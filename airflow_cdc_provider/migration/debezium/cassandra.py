"""Rules for the properties of Debezium's connector for Cassandra (3.6, and its documentation before 3.0)."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration import rules
from airflow_cdc_provider.migration.debezium.all_connectors import (
    COMMON,
    CONNECTION,
    OLD_PREFIX,
    PROCESS,
    STATE,
    consistency,
    custom_converters,
    exclude_databases,
    exclude_tables,
    include_databases,
    include_tables,
)
from airflow_cdc_provider.migration.debezium.kafka_clients import client_rules
from airflow_cdc_provider.migration.debezium.transforms import import_each, import_transform, reject_misplaced
from airflow_cdc_provider.migration.rules import Draft, Rule
from airflow_cdc_provider.yaml_file import read_yaml

_CASSANDRA_PACKAGE: Final = "io.debezium.connector.cassandra"


def _transforms(draft: Draft, name: str, value: str) -> None:
    """Import the EnvelopeTransformation of Debezium's Cassandra connector, and Kafka Connect's transforms."""

    def take(transform: str) -> None:
        kind = draft.properties.get(f"transforms.{transform}.type", "").strip()
        own = f"{_CASSANDRA_PACKAGE}.transforms.EnvelopeTransformation"
        if kind == own:
            reject_misplaced(draft, name, transform)
            draft.set("publish.cassandra.operations", "common")
        else:
            import_transform(draft, name, transform, (own,))

    import_each(draft, name, value, take)


def _cassandra_yaml(draft: Draft, name: str, value: str) -> None:
    """Import options from the node's cassandra.yaml, if the file exists on this machine."""
    file = Path(value)
    if not isfile(file):  # is_file raises for names that are too long
        draft.notes.append(f"property {name} is ignored: {value} does not exist on this machine")
        return
    node = read_yaml(file)
    if not isinstance(node, dict):
        raise rules.invalid(name, "a cassandra.yaml", value)
    if node.get("cdc_enabled") is not True:
        raise ConfigurationError(
            f"{value} doesn't enable CDC", expected="cdc_enabled: true", found=str(node.get("cdc_enabled"))
        )
    if node.get("cdc_raw_directory") and draft.get("source.cdc_raw") is None:
        draft.set("source.cdc_raw", str(node["cdc_raw_directory"]))
    if node.get("cluster_name") and "cassandra.cluster.name" not in draft.properties:
        draft.set("source.cluster", str(node["cluster_name"]))


_LATEST_ONLY: Final = (
    "jobs read all segments, since one that reads the latest alone would lose changes. To inspect a log, set "
    "source.advanced.latest_segment_only and run airflow cdc events"
)


def _latest_only(draft: Draft, name: str, value: str) -> None:
    if rules.boolean(name, value):
        draft.notes.append(f"property {name} is ignored: {_LATEST_ONLY}")


def _snapshot_mode(draft: Draft, name: str, value: str) -> None:
    modes = {"initial": "initial", "always": "initial", "never": "never", "no_data": "never"}
    rules.choice("snapshot.mode", modes).apply(draft, name, value)
    if value.lower() == "always":
        draft.notes.append(
            f"property {name}: always of Debezium's connector for Cassandra reads newly enabled tables, as "
            "each run does with mode initial; mode always reads all tables in each run"
        )


CASSANDRA: Final[dict[str, Rule]] = {
    **COMMON,
    "connector.name": rules.name_option("name"),
    "kafka.topic.prefix": OLD_PREFIX,
    "converters": custom_converters("publish.cassandra.converters"),
    **client_rules("publish.kafka.producer", "kafka.producer."),
    **client_rules("publish.kafka.consumer", "kafka.consumer."),
    "transforms": rules.custom_rule(
        "`publish.cassandra.operations: common` for EnvelopeTransformation; those of Kafka Connect are "
        "`publish.transforms`",
        _transforms,
    ),
    "transforms.*": rules.handled_elsewhere("with `transforms`"),
    "snapshot.mode": rules.custom_rule(
        "`snapshot.mode`; always is `initial`, no_data `never`", _snapshot_mode
    ),
    "snapshot.consistency": consistency("NODE_LOCAL"),
    "snapshot.scan.interval.ms": rules.ignored("each run detects new tables"),
    "snapshot.fetch.size": PROCESS,
    "snapshot.max.threads": rules.ignored("Spark divides the work"),
    "http.port": rules.ignored("CdcHealthOperator reports health and version of reader and source"),
    "cassandra.config": rules.custom_rule(
        "`source.cdc_raw` and `source.cluster`, if the file exists on this machine and enables CDC",
        _cassandra_yaml,
    ),
    "cassandra.node.id": rules.option("source.node"),
    "cassandra.hosts": CONNECTION,
    "cassandra.port": CONNECTION,
    "cassandra.username": CONNECTION,
    "cassandra.password": CONNECTION,
    "cassandra.ssl.enabled": CONNECTION,
    "cassandra.ssl.config.path": rules.ignored(
        "set tls_config_file in the extra of the Airflow connection to the same file"
    ),
    "cassandra.driver.config.file": rules.option("source.driver_config_file"),
    "cassandra.driver.*": CONNECTION,
    "cassandra.cluster.name": rules.option("source.cluster"),
    "cdc.dir.poll.interval.ms": rules.ignored("use the sensor's poke interval or the DAG's schedule"),
    "schema.refresh.interval.ms": rules.ignored("the log records schema changes"),
    "commit.log.relocation.dir": rules.ignored("it is CommitLogTransferOperator's landing folder"),
    "commit.log.relocation.dir.poll.interval.ms": rules.ignored(
        "the DAG's schedule determines when to transfer"
    ),
    "commit.log.post.processing.enabled": rules.ignored("it is after_commit of CommitLogTransferOperator"),
    "commit.log.transfer.class": rules.ignored("it is transfer_class of CommitLogTransferOperator"),
    "commit.log.transfer.*": rules.ignored("it configures a Java class"),
    "commit.log.error.reprocessing.enabled": rules.ignored("it is retry_errors of CommitLogTransferOperator"),
    "commit.log.real.time.processing.enabled": rules.ignored("open segments are always read up to their idx"),
    "commit.log.marked.complete.poll.interval": PROCESS,
    "commit.log.marked.complete.poll.interval.ms": PROCESS,
    "commit.log.processor.shutdown.timeout.seconds": PROCESS,
    "poll.dispatch.interval.ms": PROCESS,
    "latest.commit.log.only": Rule("ignored", _LATEST_ONLY, _latest_only),
    "offset.backing.store.dir": STATE,
    "max.offset.flush.size": STATE,
    "num.of.change.event.queues": PROCESS,
    "event.order.guarantee.mode": rules.choice(
        "publish.cassandra.order", {"commitlog_file": "log", "partition_values": "write_time"}
    ),
    "decimal.handling.mode": rules.choice(
        "publish.cassandra.decimals", {"double": "double", "precise": "precise", "string": "string"}
    ),
    "varint.handling.mode": rules.choice(
        "publish.cassandra.varints", {"long": "long", "precise": "precise", "string": "string"}
    ),
    "extended.headers.enabled": rules.ignored("events of Cassandra have no such headers, in Debezium either"),
    "field.exclude.list": rules.EXCLUDED_COLUMNS,
    "column.exclude.list": rules.EXCLUDED_COLUMNS,
    "sourceinfo.struct.maker": rules.unsupported(
        "Use `publish.cassandra.source` to select the source block",
        f"{_CASSANDRA_PACKAGE}.CassandraSourceInfoStructMaker",
    ),
    "tracing.enabled": rules.unsupported("Tracing spans are not implemented", "false"),
    "table.include.list": rules.custom_rule("`tables`", include_tables),
    "table.exclude.list": rules.custom_rule("`exclude_tables`", exclude_tables),
    "keyspace.include.list": rules.custom_rule("`tables`", include_databases),
    "keyspace.exclude.list": rules.custom_rule("`exclude_tables`", exclude_databases),
}
