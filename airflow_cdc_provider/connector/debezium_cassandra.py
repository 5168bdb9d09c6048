"""What becomes of the properties of Debezium's connector for Cassandra (3.6, and its page before 3.0)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from airflow_cdc_provider.connector.debezium_chain import refuse_misplaced, take_each, take_transform
from airflow_cdc_provider.connector.debezium_clients import client_rules
from airflow_cdc_provider.connector.debezium_rules import (
    COMMON,
    CONNECTION,
    PROCESS,
    STATE,
    own_converters,
    take_excluded,
    take_excluded_databases,
    take_included,
    take_included_databases,
)
from airflow_cdc_provider.connector.imported import (
    Draft,
    Rule,
    choice,
    flag,
    left_out,
    name_option,
    option,
    read_elsewhere,
    refused,
    split_list,
    taken,
    wrong,
)
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.yaml_file import read_yaml

_CASSANDRA_PACKAGE: Final = "io.debezium.connector.cassandra"

_CONSISTENCIES: Final = (
    "any",
    "one",
    "two",
    "three",
    "quorum",
    "all",
    "local_quorum",
    "each_quorum",
    "serial",
    "local_serial",
    "local_one",
    "node_local",
)


def _own_converters(draft: Draft, name: str, value: str) -> None:
    if converters := own_converters(draft, value):
        draft.set("publish.cassandra.converters", converters)


def _transforms(draft: Draft, name: str, value: str) -> None:
    """Follow the one transformation that Debezium's Cassandra connector brings, and Kafka Connect's."""

    def take(transform: str) -> None:
        kind = draft.properties.get(f"transforms.{transform}.type", "").strip()
        own = f"{_CASSANDRA_PACKAGE}.transforms.EnvelopeTransformation"
        if kind == own:
            refuse_misplaced(draft, name, transform)
            draft.set("publish.cassandra.operations", "common")
        else:
            take_transform(draft, name, transform, (own,))

    take_each(draft, name, value, take)


def _cassandra_yaml(draft: Draft, name: str, value: str) -> None:
    """Take what capture needs from the node's configuration, if it is here."""
    file = Path(value)
    if not file.is_file():
        draft.notes.append(f"property {name} is left out: there is no {value} on this machine")
        return
    node = read_yaml(file)
    if not isinstance(node, dict):
        raise wrong(name, "a cassandra.yaml", value)
    if node.get("cdc_enabled") is not True:
        raise ConfigurationError(
            f"{value} doesn't turn on CDC", expected="cdc_enabled: true", found=str(node.get("cdc_enabled"))
        )
    if node.get("cdc_raw_directory") and draft.get("source.cdc_raw") is None:
        draft.set("source.cdc_raw", str(node["cdc_raw_directory"]))
    if node.get("cluster_name") and "cassandra.cluster.name" not in draft.properties:
        draft.set("source.cluster", str(node["cluster_name"]))


def _excluded(draft: Draft, name: str, value: str) -> None:
    columns = split_list(value)
    for column in columns:
        if len(column.split(".")) < 3:
            raise wrong(name, "keyspace.table.column each", column)
    draft.set("publish.exclude_columns", columns)


def _consistency(draft: Draft, name: str, value: str) -> None:
    if value.lower() not in _CONSISTENCIES:
        raise wrong(name, f"one of {', '.join(_CONSISTENCIES).upper()}", value)
    draft.set("source.consistency", value.upper())


CASSANDRA: Final[dict[str, Rule]] = {
    **COMMON,
    "connector.name": name_option("name"),
    "kafka.topic.prefix": name_option("publish.topic_prefix"),
    "converters": taken(
        "`publish.cassandra.converters`, with `<name>.type`, a Python function (Java classes are refused), "
        "`<name>.columns` and all other `<name>.*`",
        _own_converters,
    ),
    **client_rules("publish.kafka.producer", "kafka.producer."),
    **client_rules("publish.kafka.consumer", "kafka.consumer."),
    "transforms": taken(
        "`publish.cassandra.operations: common` for EnvelopeTransformation; those of Kafka Connect are "
        "`publish.transforms`",
        _transforms,
    ),
    "transforms.*": read_elsewhere("with `transforms`"),
    "snapshot.mode": choice(
        "snapshot.mode", {"initial": "initial", "always": "initial", "never": "never", "no_data": "never"}
    ),
    "snapshot.consistency": taken("`source.consistency`, every level of CQL", _consistency),
    "snapshot.scan.interval.ms": left_out("each run looks for new tables"),
    "snapshot.fetch.size": PROCESS,
    "snapshot.max.threads": left_out("Spark divides the work"),
    "http.port": left_out("CdcHealthOperator tells of reader and source"),
    "cassandra.config": taken(
        "`source.cdc_raw` and `source.cluster`, if the file is here and turns on CDC", _cassandra_yaml
    ),
    "cassandra.node.id": option("source.node"),
    "cassandra.hosts": CONNECTION,
    "cassandra.port": CONNECTION,
    "cassandra.username": CONNECTION,
    "cassandra.password": CONNECTION,
    "cassandra.ssl.enabled": CONNECTION,
    "cassandra.ssl.config.path": left_out(
        "name the same file as tls_config_file in the extra of the Airflow connection"
    ),
    "cassandra.driver.config.file": option("source.driver_config_file"),
    "cassandra.driver.*": CONNECTION,
    "cassandra.cluster.name": option("source.cluster"),
    "cdc.dir.poll.interval.ms": left_out("the sensor's poke interval or the DAG's schedule does it"),
    "schema.refresh.interval.ms": left_out("the log itself tells when a schema changes"),
    "commit.log.relocation.dir": left_out("it is CommitLogTransferOperator's landing folder"),
    "commit.log.relocation.dir.poll.interval.ms": left_out("the DAG's schedule says when to transfer"),
    "commit.log.post.processing.enabled": left_out("it is after_commit of CommitLogTransferOperator"),
    "commit.log.transfer.class": left_out("it is transfer_class of CommitLogTransferOperator"),
    "commit.log.transfer.*": left_out("it configures a Java class"),
    "commit.log.error.reprocessing.enabled": left_out("it is retry_errors of CommitLogTransferOperator"),
    "commit.log.real.time.processing.enabled": left_out("open segments are always read up to their idx"),
    "commit.log.marked.complete.poll.interval": PROCESS,
    "commit.log.marked.complete.poll.interval.ms": PROCESS,
    "commit.log.processor.shutdown.timeout.seconds": PROCESS,
    "poll.dispatch.interval.ms": PROCESS,
    "latest.commit.log.only": flag("source.advanced.latest_segment_only"),
    "offset.backing.store.dir": STATE,
    "max.offset.flush.size": STATE,
    "num.of.change.event.queues": PROCESS,
    "event.order.guarantee.mode": choice(
        "publish.cassandra.order", {"commitlog_file": "log", "partition_values": "write_time"}
    ),
    "decimal.handling.mode": choice(
        "publish.cassandra.decimals", {"double": "double", "precise": "precise", "string": "string"}
    ),
    "varint.handling.mode": choice(
        "publish.cassandra.varints", {"long": "long", "precise": "precise", "string": "string"}
    ),
    "field.exclude.list": taken("`publish.exclude_columns`", _excluded),
    "sourceinfo.struct.maker": refused(
        "The source block is chosen by `publish.cassandra.source`",
        f"{_CASSANDRA_PACKAGE}.CassandraSourceInfoStructMaker",
    ),
    "tracing.enabled": refused("Spans are not made yet", "false"),
    "table.include.list": taken("`tables`", take_included),
    "table.exclude.list": taken("`exclude_tables`", take_excluded),
    "keyspace.include.list": taken("`tables`", take_included_databases),
    "keyspace.exclude.list": taken("`exclude_tables`", take_excluded_databases),
}
