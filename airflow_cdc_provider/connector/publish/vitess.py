"""Event options of source vitess. Imports little: read when DAG files are parsed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option, secret_settings
from airflow_cdc_provider.patterns import wrong_patterns

_MASK: Final = re.compile(r"(truncate|mask):\d+|(hash|hash-v2):([^:]+):.+", re.DOTALL)


def digest_algorithm(name: str) -> str:
    """Return hashlib's name of one of Java's algorithms (``SHA-256``); empty if there is none."""
    known = {_letters(one): one for one in sorted(hashlib.algorithms_available) if "shake" not in one}
    return known.get(_letters(name), "")


def _letters(name: str) -> str:
    return re.sub(r"[-_/]", "", name).lower()


def _patterns(values: tuple[str, ...]) -> str:
    return wrong_patterns(values, "keyspace.table.column")


def _salts(form: str) -> list[str]:
    """Return the salt of a mask, if it has one."""
    return [form.split(":", 2)[2]] if form.startswith("hash") else []


def _masks(values: Mapping[str, str]) -> str:
    for pattern, form in values.items():
        found = _MASK.fullmatch(form) if isinstance(form, str) else None
        expected = "truncate:N, mask:N, hash:ALGORITHM:SALT or hash-v2:ALGORITHM:SALT"
        if found is not None and found[3]:
            expected = "" if digest_algorithm(found[3]) else "an algorithm of Python's hashlib"
        elif found is not None:
            expected = ""
        if expected:  # without the value, which has the salt
            raise ConfigurationError(
                f"invalid value for option publish.vitess.masks of {pattern!r}", expected=expected
            )
    return _patterns(tuple(values))


def _field_paths(values: Iterable[str]) -> str:
    for value in values:
        if not re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", value):
            return f"dotted paths of fields ({value!r})"
    return ""


def _topic_part(value: str) -> str:
    return "" if re.fullmatch(r"[A-Za-z0-9._-]{0,200}", value) else "letters, digits, . _ and -"


def _key_columns(values: Mapping[str, str]) -> str:
    for table, columns in values.items():
        if wrong := wrong_patterns(
            [table, *split_expressions(columns)], "keyspace.table and on column names"
        ):
            return wrong
    return ""


def split_expressions(text: str, separator: str = ",") -> list[str]:
    """Split regular expressions at separators that are not escaped, in brackets, braces or parentheses."""
    parts, depth = [""], 0
    for token in re.findall(r"\\.|\[(?:\\.|[^\]\\])+\]|.", text, re.DOTALL):
        depth += (token in ("(", "{")) - (token in (")", "}"))
        if token == separator and not depth:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts if part.strip()]


@dataclass(frozen=True)
class VitessPublishOptions:
    """Event options of source vitess."""

    temporal: Literal[
        "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds", "text"
    ] = option(
        "Representation of DATE, TIME and DATETIME (time.precision.mode). text: MySQL's text, also for "
        "TIMESTAMP and YEAR, as in Debezium 2.0",
        "adaptive_time_microseconds",
    )
    decimals: Literal["string", "precise", "double"] = option(
        "Representation of DECIMAL. string: its digits, as Debezium 3.5 regardless of decimal.handling.mode; "
        "precise: Connect's Decimal; double: rounded",
        "string",
    )
    unsigned_bigints: Literal["string", "precise", "long"] = option(
        "Representation of BIGINT UNSIGNED (bigint.unsigned.handling.mode); long: null above 2^63 - 1",
        "string",
    )
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = option(
        "Representation of BINARY, VARBINARY and BLOB (binary.handling.mode)", "bytes"
    )
    nullable_dates: bool = option(
        "Write invalid dates as null, which makes all DATE and DATETIME columns nullable "
        "(override.datetime.to.nullable); false: NOT NULL columns have 1970-01-01 instead",
        False,
    )
    include_unknown_types: bool = option(
        "Include columns of unsupported types as bytes, always null (include.unknown.datatypes)", False
    )
    bits: bool = option(
        "Include BIT columns: BIT(1) as boolean, others as io.debezium.data.Bits. Debezium 3.5 omits them",
        False,
    )
    geometries: bool = option(
        "Include spatial columns as io.debezium.data.geometry.Geometry or Point. Debezium 3.5 omits them",
        False,
    )
    vectors: bool = option(
        "Include VECTOR columns as io.debezium.data.FloatVector. Debezium 3.5 omits them", False
    )
    charsets: Literal["utf8", "column"] = option(
        "Decoding of text. utf8: always UTF-8, invalid bytes become U+FFFD, as in Debezium; column: the "
        "character set of the column",
        "utf8",
    )
    timestamps: Literal["text", "zoned"] = option(
        "Representation of TIMESTAMP. text: MySQL's text in UTC, as Debezium 3.5; zoned: ISO 8601 with zone",
        "text",
    )
    include_columns: tuple[str, ...] = option(
        "Anchored regular expressions on keyspace.table.column: the only columns in values "
        "(column.include.list). Keys are unaffected",
        (),
        check=_patterns,
    )
    exclude_columns: tuple[str, ...] = option(
        "Anchored regular expressions of columns to exclude from values (column.exclude.list)",
        (),
        check=_patterns,
    )
    key_columns: Mapping[str, str] = option(
        "Keys other than primary keys (message.key.columns): an anchored regular expression on "
        "keyspace.table, and such expressions on column names, separated by commas, in the order of the key. "
        "A table without a matching column keeps its primary key",
        {},
        check=_key_columns,
    )
    masks: Mapping[str, str] = option(
        "Text columns to mask or truncate in values: a regular expression on keyspace.table.column, and "
        "truncate:N (characters; bytes of binary columns), mask:N (asterisks), hash:ALGORITHM:SALT or "
        "hash-v2:ALGORITHM:SALT "
        "(column.truncate, column.mask, column.mask.hash). The first match applies",
        {},
        check=_masks,
        secret=_salts,
    )
    source_types_of_columns: tuple[str, ...] = option(
        "Anchored regular expressions on keyspace.table.column: add MySQL type, length and scale to the "
        "schemas of these columns (column.propagate.source.type)",
        (),
        check=_patterns,
    )
    source_types: tuple[str, ...] = option(
        "As before, by type: VARCHAR or BIGINT UNSIGNED, or VStream's INT64; also as keyspace.TYPE, "
        "keyspace.table.TYPE or keyspace.table.column (datatype.propagate.source.type)",
        (),
        check=_patterns,
    )
    converters: Mapping[str, Mapping[str, Any]] = option(
        "Custom converters of columns: type (package.module:function), columns (a regular expression on "
        "keyspace.table.column), schema_name, and custom settings",
        {},
        secret=secret_settings,
    )
    remove_fields: tuple[str, ...] = option(
        "Dotted paths of fields to remove from values: source.vgtid, after.name ... (transform RemoveField)",
        (),
        check=_field_paths,
    )
    replace_fields: Mapping[str, str] = option(
        "Replacement values by dotted path of the field (transform ReplaceFieldValue)",
        {},
        check=_field_paths,
    )
    topic_prefix: str = option(
        "Prefix of table topics in place of publish.topic_prefix, which remains source.name "
        "(override.data.change.topic.prefix)",
        "",
        check=_topic_part,
    )
    topic_prefix_excluded_tables: tuple[str, ...] = option(
        "Anchored regular expressions of tables (keyspace.table) that keep publish.topic_prefix",
        (),
        check=_patterns,
    )
    heartbeats: bool = option(
        "Write events of VStream HEARTBEATs, with VGTID and time (heartbeat.interval.ms), to the topic of "
        "publish.heartbeat_prefix",
        False,
    )
    schema_changes_topic: str = option(
        "Topic of schema changes; default: publish.topic_prefix (override.schema.change.topic)",
        "",
        check=_topic_part,
    )
    ordered_transactions: bool = option(
        "Add epoch and rank to transactions, which order the changes of a shard "
        "(VitessOrderedTransactionMetadataFactory). Requires publish.transactions",
        False,
    )
    inherit_epochs: bool = option(
        "Continue the parents' epochs in shards created by a reshard, so that events of a row are ordered "
        "across the reshard; false: start at 0, Debezium's default (vitess.inherit.epoch). Requires "
        "ordered_transactions",
        False,
    )
    local_vgtid: bool = option(
        "Limit source.vgtid and transaction IDs to the event's shard (transform UseLocalVgtid)",
        False,
    )
    shards_in_transactions: bool = option(
        "Name tables in END records with their shard, SHARD.KEYSPACE.TABLE, as in Debezium's code; false: "
        "KEYSPACE.TABLE, as in its documentation. data_collection_order counts by this name",
        True,
    )
    transaction_records: bool = option(
        "Write BEGIN and END records of transactions; false: only transaction metadata in events "
        "(transform FilterTransactionTopicRecords)",
        True,
    )


def validate_vitess_options(transactions: bool, publish: VitessPublishOptions) -> None:
    """Reject conflicting options and options without effect.

    Args:
        transactions: Whether events have transaction metadata.
        publish: The options.

    Raises:
        ConfigurationError: Names the options.
    """
    if publish.include_columns and publish.exclude_columns:
        raise ConfigurationError(
            "options publish.vitess.include_columns and publish.vitess.exclude_columns exclude each other",
            remedy="remove one of them",
        )
    if publish.inherit_epochs and not publish.ordered_transactions:
        raise ConfigurationError(
            "option publish.vitess.inherit_epochs has no effect without ordered transactions",
            expected="publish.vitess.ordered_transactions: true",
        )
    if not transactions and (publish.ordered_transactions or not publish.transaction_records):
        name = "ordered_transactions" if publish.ordered_transactions else "transaction_records"
        raise ConfigurationError(
            f"option publish.vitess.{name} has no effect without transactions",
            expected="publish.transactions: true",
        )
