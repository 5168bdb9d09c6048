"""Rules for connectors that keep running while source ``debezium`` reads their topics.

These are the connectors of MySQL, PostgreSQL, SQL Server and other databases without a source in this
package. Only properties that determine topic names and message formats are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration import rules
from airflow_cdc_provider.migration.debezium.all_connectors import older_prefix
from airflow_cdc_provider.migration.debezium.converters import KINDS, REGISTERED, registry_addresses
from airflow_cdc_provider.migration.debezium.transforms import CONNECT, DEBEZIUM, deletes_of, import_each
from airflow_cdc_provider.migration.rules import Draft, Rule

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
"""Connector classes."""

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
    "It renames topics: set source.topics to the new names, and source.tables_from: source if a topic has "
    "several tables"
)


def finish(draft: Draft) -> None:
    """Note differences that follow from unset properties.

    Raises:
        ConfigurationError: No property determines the topic names.
    """
    prefix = draft.properties.get("topic.prefix") or draft.properties.get("database.server.name")
    if not prefix:
        raise ConfigurationError("property topic.prefix is missing", expected="the prefix of the topics")
    draft.values.setdefault("name", prefix.strip())
    draft.values.setdefault("source", {})["type"] = draft.type
    for side in ("key", "value"):
        if f"{side}.converter" not in draft.properties:
            draft.notes.append(
                f"property {side}.converter isn't set, so the Kafka Connect worker determines the format "
                f"of {side}s: "
                f"source.{side}_converter is json unless you set it"
            )
    if "skipped.operations" not in draft.properties:
        draft.notes.append(
            "property skipped.operations isn't set: Debezium skips truncates by default, and rows stay in "
            "mirrors; set it to none to capture truncates"
        )


def _prefix(draft: Draft, name: str, value: str) -> None:
    rules.name_option("name").apply(draft, name, value)
    draft.set("source.topics", [value.replace(".", r"\.") + r"\..*"])
    if draft.properties.get("name", "").strip():
        rules.name_option("name").apply(draft, "name", draft.properties["name"].strip())


def _converter(draft: Draft, name: str, value: str) -> None:
    side = name.partition(".")[0]
    kind = KINDS.get(value, "")
    if kind not in (*REGISTERED, "json") and (kind, side) != ("string", "key"):
        raise rules.unsupported_error(
            name,
            value,
            "Supported are JsonConverter, Confluent's Avro, Protobuf and JSON Schema converters, and text "
            "keys",
        )
    if kind in REGISTERED:
        address = draft.properties.get(f"{name}.schema.registry.url", "").strip()
        if not address:
            raise ConfigurationError(
                f"property {name}.schema.registry.url is missing",
                expected="the address of the schema registry",
            )
        draft.set("source.registry.url", registry_addresses(f"{name}.schema.registry.url", address))
    draft.set(f"source.{side}_converter", kind)


def _transforms(draft: Draft, name: str, value: str) -> None:
    import_each(draft, name, value, _taker(draft, name))


def _taker(draft: Draft, name: str) -> Callable[[str], None]:
    def take(transform: str) -> None:
        prefix = f"{name}.{transform}."
        kind = draft.properties.get(f"{prefix}type", "").strip()
        short, _, side = kind.removeprefix(CONNECT).partition("$")
        if kind in _TO_ROWS:
            _rows(draft, prefix)
        elif kind in _RENAMING:
            raise rules.unsupported_error(f"{prefix}type", kind, _RENAMED)
        elif kind in _DROPPING:
            draft.notes.append(
                f"transform {transform}: dropped events are missing in mirrors, so rows may remain"
            )
        elif kind.startswith(CONNECT) and short in _COLUMNS and side == "Value":
            draft.notes.append(f"transform {transform}: mirrors have the transformed columns")
        elif (kind.startswith(CONNECT) and side == "Key") or kind == f"{CONNECT}ValueToKey":
            draft.notes.append(f"transform {transform}: the transformed keys must identify rows")
        elif kind not in _HEADERS:
            raise rules.unsupported_error(
                f"{prefix}type",
                kind or transform,
                "Its output may not be rows: remove its topics from source.topics, or the transform from the "
                "connector",
            )

    return take


def _rows(draft: Draft, prefix: str) -> None:
    """Import that values are rows, and note whether deletes are included."""
    own = {n.removeprefix(prefix): t.strip() for n, t in draft.properties.items() if n.startswith(prefix)}
    if own.get("predicate"):
        raise rules.unsupported_error(
            f"{prefix}predicate", "", "Topics with rows and topics with envelopes need separate connectors"
        )
    if own.get("route.by.field"):
        raise rules.unsupported_error(f"{prefix}route.by.field", own["route.by.field"], _RENAMED)
    draft.set("source.envelope", "unwrapped")
    if deletes_of(own, prefix) == "drop":
        draft.notes.append(
            f"property {prefix}delete.tombstone.handling.mode: deletes are dropped, so rows stay in "
            "mirrors; use tombstone or rewrite to include them"
        )


_STAYS: Final = rules.ignored("the connector keeps running with this property")
_OF_REGISTRY: Final = rules.ignored("it belongs in the Airflow connection of source.registry.connection")
_IN_MESSAGE: Final = rules.ignored("each message contains this information")


def _delimiter(draft: Draft, name: str, value: str) -> None:
    if value != ".":
        raise rules.unsupported_error(
            name,
            value,
            "Table names are derived from topics by dots: set source.topics, and source.tables_from: source",
        )


def _skipped(draft: Draft, name: str, value: str) -> None:
    kinds = [kind for kind in rules.split_list(value) if kind != "none"]
    if kinds:
        draft.notes.append(f"property {name}: mirrors lack operations {', '.join(kinds)}")


_PREFIX: Final = rules.custom_rule("`source.topics`", _prefix)

READ_TOPICS: Final[dict[str, Rule]] = {
    "connector.class": rules.handled_elsewhere("the connector keeps running"),
    "name": rules.name_option("name"),
    "topic.prefix": _PREFIX,
    "database.server.name": older_prefix(_PREFIX),
    "topic.delimiter": rules.custom_rule("only `.`: table names are derived by dots", _delimiter),
    "unavailable.value.placeholder": rules.option("source.advanced.unavailable_value"),
    "skipped.operations": rules.custom_rule("no option; noted", _skipped),
    "predicates": rules.handled_elsewhere("with `transforms`"),
    "predicates.*": rules.handled_elsewhere("with `transforms`"),
    "transforms": rules.custom_rule("`source.envelope` for ExtractNewRecordState", _transforms),
    "transforms.*": rules.handled_elsewhere("with `transforms`"),
    **{
        f"{side}.converter{setting}": rule
        for side in ("key", "value")
        for setting, rule in {
            "": rules.custom_rule(f"`source.{side}_converter`, `source.registry`", _converter),
            ".schemas.enable": _IN_MESSAGE,
            ".schema.registry.url": rules.handled_elsewhere("with the converter"),
            ".schema.registry.*": _OF_REGISTRY,
            ".basic.auth.*": _OF_REGISTRY,
            ".bearer.auth.*": _OF_REGISTRY,
            ".*": _STAYS,
        }.items()
    },
    "*": _STAYS,
}
"""Rules by property."""
