"""What becomes of connectors that stay: their topics become mirrors, by source ``debezium``.

Those of MySQL, PostgreSQL, SQL Server and so on capture what has no source of its own here. Of their
properties only those say something that tell how topics are called and messages are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from airflow_cdc_provider.connector.debezium_chain import CONNECT, DEBEZIUM, deletes_of, take_each
from airflow_cdc_provider.connector.debezium_converters import KINDS, REGISTERED, registry_address
from airflow_cdc_provider.connector.imported import (
    Draft,
    Rule,
    left_out,
    name_option,
    option,
    read_elsewhere,
    refusal,
    split_list,
    taken,
)
from airflow_cdc_provider.exceptions import ConfigurationError

READ_BY_TOPICS: Final = (
    "io.debezium.connector.mysql.MySqlConnector",
    "io.debezium.connector.mariadb.MariaDbConnector",
    "io.debezium.connector.postgresql.PostgresConnector",
    "io.debezium.connector.sqlserver.SqlServerConnector",
    "io.debezium.connector.oracle.OracleConnector",
    "io.debezium.connector.db2.Db2Connector",
    "io.debezium.connector.db2as400.As400RpcConnector",
    "io.debezium.connector.informix.InformixConnector",
    "io.debezium.connector.spanner.SpannerConnector",
    "io.debezium.connector.yugabytedb.YugabyteDBgRPCConnector",
    "io.debezium.connector.postgresql.YugabyteDBConnector",
)
"""Classes of connectors."""

_TO_ROWS: Final = (
    f"{DEBEZIUM}ExtractNewRecordState",
    f"{DEBEZIUM}UnwrapFromEnvelope",
)
_RENAMING: Final = (
    f"{CONNECT}RegexRouter",
    f"{CONNECT}TimestampRouter",
    f"{DEBEZIUM}ContentBasedRouter",
    f"{DEBEZIUM}ByLogicalTableRouter",
)
_DROPPING: Final = (f"{CONNECT}Filter", f"{DEBEZIUM}Filter")
_COLUMNS: Final = ("ReplaceField", "MaskField", "Cast", "TimestampConverter", "InsertField")
_HEADERS: Final = (
    f"{CONNECT}InsertHeader",
    f"{CONNECT}DropHeaders",
    f"{CONNECT}HeaderFrom$Value",
    f"{CONNECT}SetSchemaMetadata$Value",
    f"{CONNECT}SetSchemaMetadata$Key",
)
_RENAMED: Final = (
    "It names topics anew: put the names that it gives into source.topics, and source.tables_from: source "
    "where a topic has several tables"
)


def finish(draft: Draft) -> None:
    """Tell what differs though no property says so.

    Raises:
        ConfigurationError: Nothing says how topics are called.
    """
    prefix = draft.properties.get("topic.prefix") or draft.properties.get("database.server.name")
    if not prefix:
        raise ConfigurationError("property topic.prefix is missing", expected="what leads the topics' names")
    draft.values.setdefault("name", prefix.strip())
    draft.values["source"]["type"] = draft.type
    for side in ("key", "value"):
        if f"{side}.converter" not in draft.properties:
            draft.notes.append(
                f"property {side}.converter isn't set, so Kafka Connect's worker says how {side}s are "
                f"written: source.{side}_converter is json unless you set it"
            )
    if "skipped.operations" not in draft.properties:
        draft.notes.append(
            "property skipped.operations isn't set: Debezium leaves out truncates then, and rows stay in "
            "mirrors; none has it tell them"
        )


def _prefix(draft: Draft, name: str, value: str) -> None:
    name_option("name").apply(draft, name, value)
    draft.set("source.topics", [value.replace(".", r"\.") + r"\..*"])
    if draft.properties.get("name", "").strip():
        name_option("name").apply(draft, "name", draft.properties["name"].strip())


def _converter(draft: Draft, name: str, value: str) -> None:
    side = name.partition(".")[0]
    kind = KINDS.get(value, "")
    if kind not in (*REGISTERED, "json") and (kind, side) != ("string", "key"):
        raise refusal(
            name,
            value,
            "Read are JsonConverter, Confluent's of Avro, Protobuf and JSON Schema, and keys as text",
        )
    if kind in REGISTERED:
        address = draft.properties.get(f"{name}.schema.registry.url", "").strip()
        if not address:
            raise ConfigurationError(
                f"property {name}.schema.registry.url is missing", expected="where the schemas are"
            )
        draft.set("source.registry.url", registry_address(f"{name}.schema.registry.url", address))
    draft.set(f"source.{side}_converter", kind)


def _transforms(draft: Draft, name: str, value: str) -> None:
    take_each(draft, name, value, _taker(draft, name))


def _taker(draft: Draft, name: str) -> Callable[[str], None]:
    def take(transform: str) -> None:
        lead = f"{name}.{transform}."
        kind = draft.properties.get(f"{lead}type", "").strip()
        short, _, side = kind.removeprefix(CONNECT).partition("$")
        if kind in _TO_ROWS:
            _rows(draft, lead)
        elif kind in _RENAMING:
            raise refusal(f"{lead}type", kind, _RENAMED)
        elif kind in _DROPPING:
            draft.notes.append(
                f"transform {transform}: mirrors know nothing of what it drops, so rows may stay"
            )
        elif kind.startswith(CONNECT) and short in _COLUMNS and side == "Value":
            draft.notes.append(f"transform {transform}: mirrors have the columns that it leaves")
        elif (kind.startswith(CONNECT) and side == "Key") or kind == f"{CONNECT}ValueToKey":
            draft.notes.append(f"transform {transform}: the keys that it makes must tell rows apart")
        elif kind not in _HEADERS:
            raise refusal(
                f"{lead}type",
                kind or transform,
                "What it makes of events isn't known to be rows: leave its topics out of source.topics, or "
                "the transform out of the connector",
            )

    return take


def _rows(draft: Draft, lead: str) -> None:
    """Take over that values are rows, and tell what of deletes comes."""
    own = {n.removeprefix(lead): t.strip() for n, t in draft.properties.items() if n.startswith(lead)}
    if own.get("predicate"):
        raise refusal(
            f"{lead}predicate", "", "Topics with rows and topics with envelopes need a connector here each"
        )
    if own.get("route.by.field"):
        raise refusal(f"{lead}route.by.field", own["route.by.field"], _RENAMED)
    draft.set("source.envelope", "unwrapped")
    if deletes_of(own) == "drop":
        draft.notes.append(
            f"property {lead}delete.tombstone.handling.mode: deletes don't come, so rows stay in mirrors; "
            "tombstone or rewrite has them come"
        )


_STAYS: Final = left_out("the connector stays, and with it what this says")
_OF_REGISTRY: Final = left_out(
    "it belongs to the Airflow connection of the registry, which source.registry.connection names"
)
_TOLD: Final = left_out("each message tells it")


def _delimiter(draft: Draft, name: str, value: str) -> None:
    if value != ".":
        raise refusal(
            name,
            value,
            "Tables are told from topics by dots: set source.topics, and source.tables_from: source",
        )


def _skipped(draft: Draft, name: str, value: str) -> None:
    kinds = [kind for kind in split_list(value) if kind != "none"]
    if kinds:
        draft.notes.append(f"property {name}: of operations {', '.join(kinds)} mirrors know nothing")


READ_TOPICS: Final[dict[str, Rule]] = {
    "connector.class": read_elsewhere("names the connector, which stays"),
    "name": name_option("name"),
    "topic.prefix": taken("`source.topics`", _prefix),
    "database.server.name": taken("`source.topics`, as topic.prefix was called before Debezium 2", _prefix),
    "topic.delimiter": taken("nothing: tables are told by dots", _delimiter),
    "unavailable.value.placeholder": option("source.advanced.unavailable_value"),
    "skipped.operations": taken("nothing, but is told", _skipped),
    "predicates": read_elsewhere("with `transforms`"),
    "predicates.*": read_elsewhere("with `transforms`"),
    "transforms": taken("`source.envelope` for ExtractNewRecordState", _transforms),
    "transforms.*": read_elsewhere("with `transforms`"),
    **{
        f"{side}.converter{setting}": rule
        for side in ("key", "value")
        for setting, rule in {
            "": taken(f"`source.{side}_converter`, `source.registry`", _converter),
            ".schemas.enable": _TOLD,
            ".schema.registry.url": read_elsewhere("with the converter"),
            ".schema.registry.*": _OF_REGISTRY,
            ".basic.auth.*": _OF_REGISTRY,
            ".bearer.auth.*": _OF_REGISTRY,
            ".*": _STAYS,
        }.items()
    },
    "*": _STAYS,
}
"""By property."""
