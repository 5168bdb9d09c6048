"""What becomes of the properties of ScyllaDB's source connector (2.0), which is built on Debezium."""

from __future__ import annotations

import re
from typing import Final

from airflow_cdc_provider.connector.debezium_chain import refuse_misplaced, take_each, take_transform
from airflow_cdc_provider.connector.debezium_rules import COMMON, CONNECTION, PROCESS
from airflow_cdc_provider.connector.debezium_transforms import UNWRAP
from airflow_cdc_provider.connector.imported import (
    Draft,
    Rule,
    choice,
    find_rule,
    flag,
    left_out,
    name_option,
    number,
    option,
    read_elsewhere,
    refusal,
    seconds,
    split_list,
    taken,
    wrong,
)
from airflow_cdc_provider.connector.publish_scylla import KEY_PLACES
from airflow_cdc_provider.exceptions import ConfigurationError

_PACKAGE: Final = "com.scylladb.cdc.debezium.connector.transforms"
_ROWS: Final = (f"{_PACKAGE}.ScyllaExtractNewRecordState", f"{_PACKAGE}.ScyllaExtractNewState")
_ROWS_OF_CELLS: Final = "io.debezium.transforms.ExtractNewRecordState"
_FLAT_COLUMNS: Final = f"{_PACKAGE}.ScyllaFlattenColumns"

_LEVELS: Final = (
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
)
_IMAGES: Final = {"none": "none", "full": "full", "only-updated": "only-updated"}
_EXTRA: Final = "it belongs into the extra of the Airflow connection"
_POOL: Final = left_out(
    "the driver keeps a pool of connections to each node; source.advanced.requests_in_flight bounds requests"
)


def scyllas_finish(draft: Draft) -> None:
    """Tell what properties say nothing in the events' format, and refuse what must be there and isn't.

    Raises:
        ConfigurationError: There are no tables, no nodes, or half of a login.
    """
    properties = draft.properties
    for name in ("scylla.cluster.ip.addresses", "scylla.table.names"):
        if not properties.get(name, "").strip():
            raise ConfigurationError(f"property {name} is missing")
    if bool(properties.get("scylla.user")) != bool(properties.get("scylla.password")):
        raise ConfigurationError(
            "properties scylla.user and scylla.password belong together", expected="both or neither"
        )
    chosen = draft.get("publish.scylla")
    if not isinstance(chosen, dict):
        return
    other = {
        "legacy": ("before", "after", "key_placement", "payload_key_name"),
        "advanced": ("preimages", "flatten_columns"),
    }
    form = str(chosen.get("format", "legacy"))
    for name in other[form]:
        if chosen.pop(name, None):
            draft.notes.append(f"publish.scylla.{name} is left out: it says nothing in format {form}")


def _addresses(draft: Draft, name: str, value: str) -> None:
    for address in split_list(value):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise wrong(name, "host:port, ...", value)
    CONNECTION.apply(draft, name, value)


def _tables(draft: Draft, name: str, value: str) -> None:
    """Select tables by their names."""
    for table in split_list(value):
        if not re.fullmatch(r"[^.\s]+\.[^.\s]+", table):
            raise wrong(name, "keyspace.table, ...", value)
        draft.include.append(re.escape(table))


def _old_prefix(draft: Draft, name: str, value: str) -> None:
    if "topic.prefix" not in draft.properties:
        name_option("publish.topic_prefix").apply(draft, name, value)


def _consistency(draft: Draft, name: str, value: str) -> None:
    if value.lower() not in _LEVELS:
        raise wrong(name, f"one of {', '.join(_LEVELS).upper()}", value)
    draft.set("source.consistency", value.upper())


def _attempts(draft: Draft, name: str, value: str) -> None:
    """Take over how often the worker is tried, the first time included."""
    if value == "-1":
        raise refusal(name, value, "A request is not asked again for ever; Airflow retries the task")
    if not re.fullmatch(r"[1-9]\d*", value):
        raise wrong(name, "a whole number above 0", value)
    draft.set("source.advanced.retries", int(value) - 1)


def _jitter(draft: Draft, name: str, value: str) -> None:
    if not value.isdigit() or not 1 <= int(value) <= 100:
        raise wrong(name, "1 to 100", value)
    draft.set("source.advanced.retry_jitter_percent", int(value))


def _placement(draft: Draft, name: str, value: str) -> None:
    places = [place.lower() for place in split_list(value)]
    if not places or not set(places) <= set(KEY_PLACES):
        raise wrong(name, f"at least one of {', '.join(KEY_PLACES)}", value)
    draft.set("publish.scylla.key_placement", places)


def _transforms(draft: Draft, name: str, value: str) -> None:
    """Follow the transforms that the connector brings, and Debezium's that makes rows of events."""

    def take(transform: str) -> None:
        lead = f"{name}.{transform}."
        kind = draft.properties.get(f"{lead}type", "").strip()
        if kind in (*_ROWS, _FLAT_COLUMNS, _ROWS_OF_CELLS):
            refuse_misplaced(draft, name, transform)
        if kind == _FLAT_COLUMNS:
            draft.set("publish.scylla.flatten_columns", True)
        elif kind in (*_ROWS, _ROWS_OF_CELLS):
            draft.set("publish.unwrap.enabled", True)
            if kind == _ROWS_OF_CELLS and draft.properties.get("cdc.output.format", "legacy") == "legacy":
                draft.set("publish.scylla.rows_of_cells", True)
            _row_settings(draft, lead)
        else:
            take_transform(draft, name, transform, (*_ROWS, _FLAT_COLUMNS, _ROWS_OF_CELLS))

    take_each(draft, name, value, take)


def _row_settings(draft: Draft, lead: str) -> None:
    """Take over the settings of a transform that makes rows."""
    for name, value in draft.properties.items():
        setting = name.removeprefix(lead)
        if name.startswith(lead) and setting not in ("type", "cdc.output.format"):
            rule = find_rule(setting, UNWRAP)
            rule.apply(draft, name, value.strip())


SCYLLA: Final[dict[str, Rule]] = {
    **COMMON,
    "tasks.max": left_out("Spark divides the work: groups of streams are spread over the tasks of a job"),
    "scylla.name": taken("`publish.topic_prefix`, where topic.prefix isn't set", _old_prefix),
    "scylla.cluster.ip.addresses": taken(
        "left out: nodes belong into the Airflow connection that source.conn_id names", _addresses
    ),
    "scylla.table.names": taken("`tables`", _tables),
    "scylla.user": CONNECTION,
    "scylla.password": CONNECTION,
    "scylla.consistency.level": taken("`source.consistency`, every level of CQL", _consistency),
    "scylla.local.dc": left_out(f"{_EXTRA}, as it is or as local_datacenter"),
    "scylla.ssl.*": left_out(f"{_EXTRA}, as it is"),
    "scylla.query.time.window.size": number("source.query_window_seconds", per=1000),
    "scylla.confidence.window.size": number("source.confidence_window_seconds", per=1000),
    "scylla.minimal.wait.for.window.time": number("source.minimal_wait_seconds", per=1000),
    "scylla.initial.lookback.ms": number("source.lookback_seconds", per=1000),
    "scylla.query.options.fetch.size": number("source.fetch_size"),
    "worker.retry.backoff.base": number("source.advanced.retry_pause_seconds", per=1000),
    "worker.maximum.backoff": number("source.advanced.retry_longest_pause_seconds", per=1000),
    "worker.jitter.percentage": taken("`source.advanced.retry_jitter_percent`", _jitter),
    "worker.max.retries": taken(
        "`source.advanced.retries`, one less: the property counts attempts. -1 is refused", _attempts
    ),
    "worker.shared.session.enabled": left_out("a Spark process always has one session"),
    "worker.pooling.*": _POOL,
    "cdc.output.format": choice("publish.scylla.format", {"legacy": "legacy", "advanced": "advanced"}),
    "cdc.include.before": choice("publish.scylla.before", _IMAGES),
    "cdc.include.after": choice("publish.scylla.after", _IMAGES),
    "cdc.include.primary-key.placement": taken("`publish.scylla.key_placement`", _placement),
    "cdc.include.primary-key.payload-key-name": option("publish.scylla.payload_key_name"),
    "experimental.preimages.enabled": flag("publish.scylla.preimages"),
    "cdc.incomplete.task.timeout.ms": left_out(
        "a change is read once it is whole, with its images, which source.confidence_window_seconds gives "
        "it time for; one that never becomes so stops the capture and isn't dropped"
    ),
    "heartbeat.interval.ms": taken(
        "`publish.heartbeat_interval_seconds`; each commit stores how far streams without changes were read, "
        "with or without heartbeats",
        seconds("publish.heartbeat_interval_seconds").apply,
    ),
    "transforms": taken(
        "`publish.unwrap` for ScyllaExtractNewRecordState and Debezium's ExtractNewRecordState, "
        "`publish.scylla.flatten_columns` for ScyllaFlattenColumns; those of Kafka Connect are "
        "`publish.transforms`",
        _transforms,
    ),
    "transforms.*": read_elsewhere("with `transforms`"),
    "max.batch.size": PROCESS,
}
