"""What events of Vitess can look like: options below ``publish.vitess``. Light: read by DAG files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option

_MASK: Final = re.compile(r"(truncate|mask):\d+|(hash|hash-v2):[^:]+:.+", re.DOTALL)


def _patterns(values: tuple[str, ...]) -> str:
    for value in values:
        try:
            re.compile(value)
        except re.error as error:
            return f"regular expressions on keyspace.table.column ({value!r}: {error})"
    return ""


def _masks(values: Mapping[str, str]) -> str:
    for pattern, form in values.items():
        if not isinstance(form, str) or not _MASK.fullmatch(form):
            return f"truncate:N, mask:N, hash:ALGORITHM:SALT or hash-v2:ALGORITHM:SALT, for {pattern!r}"
    return _patterns(tuple(values))


def _field_paths(values: Iterable[str]) -> str:
    for value in values:
        if not re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", value):
            return f"names of fields with dots between them ({value!r})"
    return ""


def _topic_part(value: str) -> str:
    return "" if re.fullmatch(r"[A-Za-z0-9._-]{0,200}", value) else "letters, digits, . _ and -"


def _key_columns(values: Mapping[str, str]) -> str:
    for table, columns in values.items():
        try:
            re.compile(table)
            re.compile(columns)
        except re.error as error:
            return f"expressions on keyspace.table and, for each, on names of columns ({table!r}: {error})"
    return ""


@dataclass(frozen=True)
class VitessPublishOptions:
    """Choices that only events of Vitess have."""

    temporal: Literal[
        "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds", "text"
    ] = option(
        "How DATE, TIME and DATETIME are shown (time.precision.mode). text: MySQL's text, also for TIMESTAMP "
        "and YEAR, as Debezium 2.0 showed them",
        "adaptive_time_microseconds",
    )
    decimals: Literal["string", "precise", "double"] = option(
        "How DECIMAL is shown: its digits, which is all that Debezium 3.5 does whatever its "
        "decimal.handling.mode says; precise: Connect's Decimal; double: rounded",
        "string",
    )
    unsigned_bigints: Literal["string", "precise", "long"] = option(
        "How BIGINT UNSIGNED is shown (bigint.unsigned.handling.mode); long: null above 2^63 - 1", "string"
    )
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = option(
        "How BINARY, VARBINARY and BLOB are shown (binary.handling.mode)", "bytes"
    )
    nullable_dates: bool = option(
        "Dates that no calendar has are null, and so all DATE and DATETIME columns may be null "
        "(override.datetime.to.nullable); otherwise columns with NOT NULL show 1970-01-01 for them",
        False,
    )
    unknown_types: bool = option(
        "Columns that are not shown appear as bytes, always null (include.unknown.datatypes)", False
    )
    bits: bool = option(
        "Show BIT columns: BIT(1) as boolean, others as bytes (io.debezium.data.Bits). Debezium 3.5 leaves "
        "them out",
        False,
    )
    geometries: bool = option(
        "Show spatial columns, as io.debezium.data.geometry.Geometry or Point. Debezium 3.5 leaves them out",
        False,
    )
    vectors: bool = option(
        "Show VECTOR columns, as io.debezium.data.FloatVector. Debezium 3.5 leaves them out", False
    )
    charsets: Literal["utf8", "column"] = option(
        "utf8: all text is read as UTF-8, as Debezium does, and what is none becomes U+FFFD; column: by the "
        "charset of its column",
        "utf8",
    )
    timestamps: Literal["text", "zoned"] = option(
        "text: TIMESTAMP as MySQL gives it, in UTC, as Debezium 3.5 does; zoned: ISO 8601 with its zone",
        "text",
    )
    include_columns: tuple[str, ...] = option(
        "Anchored regular expressions on keyspace.table.column: only these columns are in values "
        "(column.include.list). Keys keep theirs",
        (),
        check=_patterns,
    )
    exclude_columns: tuple[str, ...] = option(
        "Likewise, columns to leave out of values (column.exclude.list)", (), check=_patterns
    )
    key_columns: Mapping[str, str] = option(
        "Other keys than primary keys (message.key.columns): an expression on keyspace.table, and one on the "
        "names of its columns",
        {},
        check=_key_columns,
    )
    masks: Mapping[str, str] = option(
        "Columns of text to hide or cut in values: an expression on keyspace.table.column, and truncate:N "
        "(characters that stay), mask:N (asterisks), hash:ALGORITHM:SALT or hash-v2:ALGORITHM:SALT "
        "(column.truncate, column.mask, column.mask.hash). The first that fits a column counts",
        {},
        check=_masks,
    )
    source_types_of_columns: tuple[str, ...] = option(
        "Anchored regular expressions on keyspace.table.column: schemas of these columns tell their type in "
        "MySQL, its length and scale (column.propagate.source.type)",
        (),
        check=_patterns,
    )
    source_types: tuple[str, ...] = option(
        "Likewise, on a type such as VARCHAR or BIGINT UNSIGNED, perhaps behind keyspace. "
        "(datatype.propagate.source.type)",
        (),
        check=_patterns,
    )
    converters: Mapping[str, Mapping[str, Any]] = option(
        "Functions that show columns otherwise: type (package.module:function), columns (a regular "
        "expression on keyspace.table.column), schema_name, and settings of its own",
        {},
    )
    remove_fields: tuple[str, ...] = option(
        "Fields to take out of values, with dots: source.vgtid, after.name ... (transform RemoveField)",
        (),
        check=_field_paths,
    )
    replace_fields: Mapping[str, str] = option(
        "Texts that stand in the place of fields' own, likewise (transform ReplaceFieldValue)",
        {},
        check=_field_paths,
    )
    topic_prefix: str = option(
        "Leads the topics of tables instead of publish.topic_prefix, which still is source.name "
        "(override.data.change.topic.prefix)",
        "",
        check=_topic_part,
    )
    topic_prefix_not_for: tuple[str, ...] = option(
        "Anchored regular expressions of tables (keyspace.table) whose topics it doesn't lead",
        (),
        check=_patterns,
    )
    heartbeats: bool = option(
        "Events of a stream's HEARTBEATs too: the VGTID that was reached and the time "
        "(heartbeat.interval.ms), on the topic that publish.heartbeat_prefix leads",
        False,
    )
    schema_changes_topic: str = option(
        "Topic of schema changes; default: publish.topic_prefix alone (override.schema.change.topic)",
        "",
        check=_topic_part,
    )
    ordered_transactions: bool = option(
        "Transactions tell their epoch and rank, which order the changes of a shard "
        "(VitessOrderedTransactionMetadataFactory). Needs publish.transactions",
        False,
    )
    inherit_epochs: bool = option(
        "The epochs of a shard that a reshard made go on above those of its parents, so that events of a row "
        "are ordered over the reshard too; false: from 0, as Debezium shows them by default "
        "(vitess.inherit.epoch). Needs ordered_transactions",
        False,
    )
    local_vgtid: bool = option(
        "source.vgtid and ids of transactions tell the event's own shard alone (transform UseLocalVgtid)",
        False,
    )
    transaction_records: bool = option(
        "Records at the beginning and end of each transaction; without them events still tell theirs "
        "(transform FilterTransactionTopicRecords)",
        True,
    )


def refuse_clashing_vitess(transactions: bool, publish: VitessPublishOptions) -> None:
    """Refuse choices that exclude each other, or say nothing.

    Args:
        transactions: Whether events tell their transactions.
        publish: The choices.

    Raises:
        ConfigurationError: Names them.
    """
    if publish.include_columns and publish.exclude_columns:
        raise ConfigurationError(
            "options publish.vitess.include_columns and publish.vitess.exclude_columns exclude each other",
            remedy="keep one",
        )
    if publish.inherit_epochs and not publish.ordered_transactions:
        raise ConfigurationError(
            "option publish.vitess.inherit_epochs says nothing without ordered transactions",
            expected="publish.vitess.ordered_transactions: true",
        )
    if not transactions and (publish.ordered_transactions or not publish.transaction_records):
        name = "ordered_transactions" if publish.ordered_transactions else "transaction_records"
        raise ConfigurationError(
            f"option publish.vitess.{name} says nothing without transactions",
            expected="publish.transactions: true",
        )
