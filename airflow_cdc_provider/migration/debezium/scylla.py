"""Rules for the properties of ScyllaDB's source connector (2.0), which is built on Debezium."""

from __future__ import annotations

import re
from typing import Final

from airflow_cdc_provider.connector.publish.scylla import KEY_PLACEMENTS
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration import rules
from airflow_cdc_provider.migration.debezium.all_connectors import (
    COMMON,
    CONNECTION,
    OLD_PREFIX,
    PROCESS,
    consistency,
)
from airflow_cdc_provider.migration.debezium.mongodb_transforms import UNWRAP
from airflow_cdc_provider.migration.debezium.transforms import import_each, import_transform, reject_misplaced
from airflow_cdc_provider.migration.rules import Draft, Rule

_PACKAGE: Final = "com.scylladb.cdc.debezium.connector.transforms"
_ROWS: Final = (f"{_PACKAGE}.ScyllaExtractNewRecordState", f"{_PACKAGE}.ScyllaExtractNewState")
_ROWS_OF_CELLS: Final = "io.debezium.transforms.ExtractNewRecordState"
_FLAT_COLUMNS: Final = f"{_PACKAGE}.ScyllaFlattenColumns"

_IMAGES: Final = {"none": "none", "full": "full", "only-updated": "only-updated"}
_EXTRA: Final = "it belongs in the extra of the Airflow connection"
_POOL: Final = rules.ignored(
    "the driver pools connections per node; source.advanced.requests_in_flight limits requests"
)


def finish_scylla(draft: Draft) -> None:
    """Check required properties, and ignore those without effect in the event format.

    Raises:
        ConfigurationError: Tables or nodes are missing, or only one of user and password is set.
    """
    properties = draft.properties
    for name in ("scylla.cluster.ip.addresses", "scylla.table.names"):
        if not properties.get(name, "").strip():
            raise ConfigurationError(f"property {name} is missing")
    if bool(properties.get("scylla.user")) != bool(properties.get("scylla.password")):
        raise ConfigurationError(
            "properties scylla.user and scylla.password require each other", expected="both or neither"
        )
    chosen = draft.get("publish.scylla")
    if not isinstance(chosen, dict):
        return
    other = {
        "legacy": ("before", "after", "key_placement", "payload_key_name"),
        "advanced": ("preimages", "flatten_columns"),
    }
    event_format = str(chosen.get("format", "legacy"))
    for name in other[event_format]:
        if chosen.pop(name, None):
            draft.notes.append(f"publish.scylla.{name} is ignored: it has no effect in format {event_format}")


def _addresses(draft: Draft, name: str, value: str) -> None:
    for address in rules.split_list(value):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise rules.invalid(name, "host:port, ...", value)
    CONNECTION.apply(draft, name, value)


def _tables(draft: Draft, name: str, value: str) -> None:
    """Select tables by name."""
    for table in rules.split_list(value):
        if not re.fullmatch(r"[^.\s]+\.[^.\s]+", table):
            raise rules.invalid(name, "keyspace.table, ...", value)
        draft.include.append(re.escape(table))


def _attempts(draft: Draft, name: str, value: str) -> None:
    """Import the number of attempts, which includes the first."""
    if value == "-1":
        raise rules.unsupported_error(
            name, value, "Unlimited retries are not supported; Airflow retries the task"
        )
    draft.set("source.advanced.retries", rules.integer(name, value, minimum=1) - 1)


def _jitter(draft: Draft, name: str, value: str) -> None:
    percent = rules.integer(name, value, minimum=1)
    if percent > 100:
        raise rules.invalid(name, "1 to 100", value)
    draft.set("source.advanced.retry_jitter_percent", percent)


def _placement(draft: Draft, name: str, value: str) -> None:
    placements = [placement.lower() for placement in rules.split_list(value)]
    if not placements or not set(placements) <= set(KEY_PLACEMENTS):
        raise rules.invalid(name, f"at least one of {', '.join(KEY_PLACEMENTS)}", value)
    draft.set("publish.scylla.key_placement", placements)


def _transforms(draft: Draft, name: str, value: str) -> None:
    """Import the connector's own transforms, and Debezium's ExtractNewRecordState."""

    def take(transform: str) -> None:
        prefix = f"{name}.{transform}."
        kind = draft.properties.get(f"{prefix}type", "").strip()
        if kind in (*_ROWS, _FLAT_COLUMNS, _ROWS_OF_CELLS):
            reject_misplaced(draft, name, transform)
        if kind == _FLAT_COLUMNS:
            draft.set("publish.scylla.flatten_columns", True)
        elif kind in (*_ROWS, _ROWS_OF_CELLS):
            draft.set("publish.unwrap.enabled", True)
            output = draft.properties.get("cdc.output.format", "legacy").strip().lower()
            if kind == _ROWS_OF_CELLS and output == "legacy":
                draft.set("publish.scylla.keep_cell_structs", True)
            _row_settings(draft, prefix)
        else:
            import_transform(draft, name, transform, (*_ROWS, _FLAT_COLUMNS, _ROWS_OF_CELLS))

    import_each(draft, name, value, take)


def _row_settings(draft: Draft, prefix: str) -> None:
    """Import the settings of an unwrapping transform."""
    for name, value in draft.properties.items():
        setting = name.removeprefix(prefix)
        if name.startswith(prefix) and setting not in ("type", "cdc.output.format"):
            draft.apply(rules.find_rule(setting, UNWRAP), name, value)


SCYLLA: Final[dict[str, Rule]] = {
    **COMMON,
    "tasks.max": rules.ignored("Spark distributes groups of streams over the tasks of a job"),
    "scylla.name": OLD_PREFIX,
    "scylla.cluster.ip.addresses": rules.custom_rule(
        "ignored: nodes belong in the Airflow connection of source.conn_id", _addresses
    ),
    "scylla.table.names": rules.custom_rule("`tables`", _tables),
    "scylla.user": CONNECTION,
    "scylla.password": CONNECTION,
    "scylla.consistency.level": consistency(),
    "scylla.local.dc": rules.ignored(f"{_EXTRA}, unchanged or as local_datacenter"),
    "scylla.ssl.*": rules.ignored(f"{_EXTRA}, unchanged"),
    "scylla.query.time.window.size": rules.number("source.query_window_seconds", per=1000),
    "scylla.confidence.window.size": rules.number("source.confidence_window_seconds", per=1000),
    "scylla.minimal.wait.for.window.time": rules.number("source.minimal_wait_seconds", per=1000),
    "scylla.initial.lookback.ms": rules.number("source.lookback_seconds", per=1000),
    "scylla.query.options.fetch.size": rules.number("source.fetch_size"),
    "worker.retry.backoff.base": rules.number("source.advanced.retry_backoff_seconds", per=1000),
    "worker.maximum.backoff": rules.number("source.advanced.retry_max_backoff_seconds", per=1000),
    "worker.jitter.percentage": rules.custom_rule("`source.advanced.retry_jitter_percent`", _jitter),
    "worker.max.retries": rules.custom_rule(
        "`source.advanced.retries`, minus one: the property counts attempts. -1 is not supported", _attempts
    ),
    "worker.shared.session.enabled": rules.ignored("a Spark process always has one session"),
    "worker.pooling.*": _POOL,
    "cdc.output.format": rules.choice("publish.scylla.format", {"legacy": "legacy", "advanced": "advanced"}),
    "cdc.include.before": rules.choice("publish.scylla.before", _IMAGES),
    "cdc.include.after": rules.choice("publish.scylla.after", _IMAGES),
    "cdc.include.primary-key.placement": rules.custom_rule("`publish.scylla.key_placement`", _placement),
    "cdc.include.primary-key.payload-key-name": rules.option("publish.scylla.payload_key_name"),
    "experimental.preimages.enabled": rules.flag("publish.scylla.preimages"),
    "cdc.incomplete.task.timeout.ms": rules.ignored(
        "a change is read when it is complete with its images, see source.confidence_window_seconds; an "
        "incomplete change fails the capture and is never dropped"
    ),
    "heartbeat.interval.ms": rules.custom_rule(
        "`publish.heartbeat_interval_seconds`; the positions of idle streams are committed with or without "
        "heartbeats",
        rules.seconds("publish.heartbeat_interval_seconds").apply,
    ),
    "transforms": rules.custom_rule(
        "`publish.unwrap` for ScyllaExtractNewRecordState and Debezium's ExtractNewRecordState, "
        "`publish.scylla.flatten_columns` for ScyllaFlattenColumns; `publish.transforms` for "
        "transforms of Kafka Connect",
        _transforms,
    ),
    "transforms.*": rules.handled_elsewhere("with `transforms`"),
    "max.batch.size": PROCESS,
    "event.processing.failure.handling.mode": rules.ignored(
        "a change that can't be decoded is quarantined and reported"
    ),
}
