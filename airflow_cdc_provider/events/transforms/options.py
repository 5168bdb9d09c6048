"""Options of transforms in ``publish.transforms``, one class per type.

Each has ``type``, which selects the class, and ``when``, which selects records. Imports little: read when DAG
files are parsed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from airflow_cdc_provider.events.transforms.expression import wrong_expression
from airflow_cdc_provider.events.transforms.expression_tree import Kind
from airflow_cdc_provider.events.transforms.java_patterns import (
    require_groups,
    wrong_pattern,
    wrong_replacement,
)
from airflow_cdc_provider.exceptions import ConfigurationError, joined
from airflow_cdc_provider.options import option, parse
from airflow_cdc_provider.secrets import is_reference

_ON: Final = "Apply to the value or the key of the record"
_TOMBSTONES: Final = (
    "Handling of tombstones (null.handling.mode). keep: pass unchanged; drop; evaluate: evaluate the "
    "expression, with value.x null"
)
CAST_TYPES: Final = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
_DATE_PARTS: Final = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|[^A-Za-z']+")
_DATE_LETTERS: Final = re.compile(r"y|yy|yyyy|MM?|dd?|HH?|hh?|mm?|ss?|S+|a|X{1,3}|Z|z")


def _expression(kind: Kind, value: str) -> str:
    return wrong_expression(value, kind)


def _optional_expression(value: str) -> str:
    return wrong_expression(value, "boolean") if value else ""


def _names(values: tuple[str, ...]) -> str:
    if not values or not all(values) or len(set(values)) < len(values):
        return "at least one name, without duplicates or empty names"
    return ""


def _name(value: str) -> str:
    return "" if value else "a non-empty name"


def _new_names(values: Mapping[str, str]) -> str:
    return "" if all(values) and all(values.values()) else "old name and new name"


def _casts(values: Mapping[str, str]) -> str:
    invalid = [kind for kind in values.values() if kind not in CAST_TYPES]
    return f"types of {', '.join(CAST_TYPES)} ({invalid[0]!r})" if invalid else ""


def _cast(value: str) -> str:
    return "" if value in ("", *CAST_TYPES) else f"one of {', '.join(CAST_TYPES)}"


def _pattern(value: str) -> str:
    return wrong_pattern(value) if value else ""


def _needed_pattern(value: str) -> str:
    return wrong_pattern(value) if value else "a regular expression"


def _date_format(value: str) -> str:
    at = 0
    while at < len(value):
        found = _DATE_PARTS.match(value, at)
        if found is None or (found[1] and not _DATE_LETTERS.fullmatch(found[0])):
            return (
                "a format of Java's SimpleDateFormat with the letters y M d H h m s S a X Z z, without "
                f"names of months and days ({value[at:]!r})"
            )
        at = found.end()
    return ""


def _salt(value: str) -> str:
    if is_reference(value):
        return ""
    return "${env:NAME} or ${file:PATH}: the salt must not be in the declaration"


def _algorithm(value: str) -> str:
    import hashlib

    known = value.replace("-", "").lower() in hashlib.algorithms_available
    return "" if known else "a hash algorithm, such as SHA-256"


@dataclass(frozen=True, kw_only=True)
class When:
    """Predicate: selects records that match all options, or with ``negate`` all others."""

    topic: str = option("Anchored regular expression on the topic (TopicNameMatches)", "", check=_pattern)
    tombstone: bool | None = option("Tombstones, or records with a value (RecordIsTombstone)", None)
    header: str = option("Records with this header (HasHeaderKey)", "")
    condition: str = option("Boolean expression", "", check=_optional_expression)
    negate: bool = option("Invert the selection", False)


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """Keeps records that match a condition."""

    type: Literal["filter"] = option("filter")
    condition: str = option("Boolean expression", check=partial(_expression, "boolean"))
    tombstones: Literal["keep", "drop", "evaluate"] = option(_TOMBSTONES, "keep")
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class DropOptions:
    """Drops the selected records."""

    type: Literal["drop"] = option("drop")
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class RouteOptions:
    """Routes records to the topic that an expression returns."""

    type: Literal["route"] = option("route")
    topic: str = option("String expression; null keeps the topic", check=partial(_expression, "text"))
    tombstones: Literal["keep", "drop", "evaluate"] = option(_TOMBSTONES, "keep")
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class RenameTopicOptions:
    """Renames topics by a regular expression."""

    type: Literal["rename_topic"] = option("rename_topic")
    regex: str = option("Anchored regular expression on the topic", check=_needed_pattern)
    replacement: str = option("New topic, with $1 or ${group}", check=wrong_replacement)
    when: When = option("Predicate that selects records", When)

    def __post_init__(self) -> None:
        """Reject references to missing groups."""
        require_groups("publish.transforms[].replacement", self.regex, self.replacement)


@dataclass(frozen=True, kw_only=True)
class LogicalTableOptions:
    """Routes several tables to one topic, and adds the table to keys."""

    type: Literal["logical_table"] = option("logical_table")
    topic_regex: str = option("Anchored regular expression on the topic", check=_needed_pattern)
    topic_replacement: str = option("New topic, with $1 or ${group}", check=wrong_replacement)
    unique_keys: bool = option("Add a field with the table to keys (key.enforce.uniqueness)", True)
    key_field_name: str = option("Name of that field", "__dbz__physicalTableIdentifier", check=_name)
    key_field_regex: str = option(
        "Anchored regular expression on the original topic; default: the whole topic", "", check=_pattern
    )
    key_field_replacement: str = option(
        "Value of the field, with $1 or ${group}", "", check=wrong_replacement
    )
    schema_names: Literal["none", "avro", "avro_unicode"] = option(
        "Adjustment of schema names for Avro", "none"
    )
    when: When = option("Predicate that selects records", When)

    def __post_init__(self) -> None:
        """Reject references to missing groups."""
        require_groups("publish.transforms[].topic_replacement", self.topic_regex, self.topic_replacement)
        require_groups(
            "publish.transforms[].key_field_replacement", self.key_field_regex, self.key_field_replacement
        )


@dataclass(frozen=True, kw_only=True)
class FieldsOptions:
    """Includes, excludes and renames fields."""

    type: Literal["fields"] = option("fields")
    target: Literal["value", "key"] = option(_ON, "value")
    include: tuple[str, ...] = option("Fields to include; default: all", ())
    exclude: tuple[str, ...] = option("Fields to exclude, or their paths (after.password)", ())
    renames: Mapping[str, str] = option("New names by field or path", {}, check=_new_names)
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """Replaces fields with the empty value of their type, or another value."""

    type: Literal["mask"] = option("mask")
    target: Literal["value", "key"] = option(_ON, "value")
    fields: tuple[str, ...] = option("Fields, or their paths (after.email)", check=_names)
    replacement: str = option("Replacement; default: empty string, 0, false, empty array", "")
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class TruncateOptions:
    """Truncates strings."""

    type: Literal["truncate"] = option("truncate")
    target: Literal["value", "key"] = option(_ON, "value")
    fields: tuple[str, ...] = option("Fields, or their paths (after.note)", check=_names)
    length: int = option("Number of characters to keep", minimum=0)
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class HashOptions:
    """Replaces strings with a salted hash."""

    type: Literal["hash"] = option("hash")
    target: Literal["value", "key"] = option(_ON, "value")
    fields: tuple[str, ...] = option("Fields, or their paths (after.email)", check=_names)
    algorithm: str = option("Hash algorithm, such as SHA-256", "SHA-256", check=_algorithm)
    salt: str = option(
        "Reference to the salt, resolved where events are built: ${env:NAME} or ${file:PATH}",
        check=_salt,
        secret=True,
    )
    version: Literal["v2", "v1"] = option("v2: hash of the UTF-8 bytes; v1: Debezium's first version", "v2")
    length: int = option("Number of hexadecimal characters to keep; 0: all", 0, minimum=0)
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class CastOptions:
    """Casts fields, or the whole value or key."""

    type: Literal["cast"] = option("cast")
    target: Literal["value", "key"] = option(_ON, "value")
    fields: Mapping[str, str] = option("Types by field or path", {}, check=_casts)
    to: str = option("Type of the whole value or key", "", check=_cast)
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class TimestampOptions:
    """Converts the format of a timestamp."""

    type: Literal["timestamp"] = option("timestamp")
    target: Literal["value", "key"] = option(_ON, "value")
    field: str = option("Field or path; default: the whole value or key", "")
    to: Literal["string", "unix", "Date", "Time", "Timestamp"] = option("Target format")
    format: str = option("Format of strings, as in SimpleDateFormat, in UTC", "", check=_date_format)
    precision: Literal["seconds", "milliseconds", "microseconds", "nanoseconds"] = option(
        "Precision of integers (unix.precision)", "milliseconds"
    )
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class InsertFieldOptions:
    """Adds fields with metadata of the record."""

    type: Literal["insert_field"] = option("insert_field")
    target: Literal["value", "key"] = option(_ON, "value")
    topic_field: str = option("Field for the topic; append ! for a required field", "")
    partition_field: str = option("Field for the partition, optionally with !", "")
    timestamp_field: str = option("Field for the record timestamp, optionally with !", "")
    static_field: str = option("Field for static_value, optionally with !", "")
    static_value: str = option("Constant value", "")
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class InsertHeaderOptions:
    """Adds or replaces a header."""

    type: Literal["insert_header"] = option("insert_header")
    header: str = option("Name of the header", check=_name)
    value: str = option("Value; numbers and booleans keep their type")
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class DropHeadersOptions:
    """Drops headers."""

    type: Literal["drop_headers"] = option("drop_headers")
    headers: tuple[str, ...] = option("Names of headers", check=_names)
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class HeaderToValueOptions:
    """Copies or moves headers to fields."""

    type: Literal["header_to_value"] = option("header_to_value")
    headers: tuple[str, ...] = option("Names of headers", check=_names)
    fields: tuple[str, ...] = option("Names or paths of fields, in the same order", check=_names)
    operation: Literal["move", "copy"] = option("Remove or keep the headers")
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class ValueToHeaderOptions:
    """Copies or moves fields to headers."""

    type: Literal["value_to_header"] = option("value_to_header")
    target: Literal["value", "key"] = option("Read fields of the value or the key", "value")
    fields: tuple[str, ...] = option("Names of fields", check=_names)
    headers: tuple[str, ...] = option("Names of headers, in the same order", check=_names)
    operation: Literal["move", "copy"] = option("Remove or keep the fields")
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class HoistOptions:
    """Wraps the value or key in a struct with one field."""

    type: Literal["hoist"] = option("hoist")
    target: Literal["value", "key"] = option(_ON, "value")
    field: str = option("Name of the field", check=_name)
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """Replaces the value or key with one of its fields."""

    type: Literal["extract"] = option("extract")
    target: Literal["value", "key"] = option(_ON, "value")
    field: str = option("Field or path", check=_name)
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class ValueToKeyOptions:
    """Replaces the key with fields of the value."""

    type: Literal["value_to_key"] = option("value_to_key")
    fields: tuple[str, ...] = option("Names of fields", check=_names)
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class FlattenOptions:
    """Flattens nested structs."""

    type: Literal["flatten"] = option("flatten")
    target: Literal["value", "key"] = option(_ON, "value")
    delimiter: str = option("Delimiter between field names", ".")
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """Sets name and version of the schema of the value or key."""

    type: Literal["schema"] = option("schema")
    target: Literal["value", "key"] = option(_ON, "value")
    name: str = option("Schema name; default: unchanged", "")
    version: int | None = option("Schema version; default: unchanged", None)
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """Sets the partition from fields of the value."""

    type: Literal["partition"] = option("partition")
    fields: tuple[str, ...] = option(
        "Paths of fields; change.x is after.x, or before.x for deletes", check=_names
    )
    partitions: int = option("Number of partitions of the topic", minimum=1)
    when: When = option("Predicate that selects records", When)


@dataclass(frozen=True, kw_only=True)
class UnwrapStepOptions:
    """Unwraps envelopes to plain rows."""

    type: Literal["unwrap"] = option("unwrap")
    deletes: Literal["drop", "tombstone", "delete-to-tombstone", "rewrite", "rewrite-with-tombstone"] = (
        option("Handling of deletes, as in publish.unwrap", "tombstone")
    )
    add_fields: tuple[str, ...] = option("Envelope fields to add to rows: op, source.ts_ms ...", ())
    add_fields_prefix: str = option("Prefix of their names", "__")
    add_headers: tuple[str, ...] = option("Envelope fields to add as headers", ())
    add_headers_prefix: str = option("Prefix of their names", "__")
    when: When = option("Predicate that selects records", When)


Transform = (
    FilterOptions
    | DropOptions
    | RouteOptions
    | RenameTopicOptions
    | LogicalTableOptions
    | FieldsOptions
    | MaskOptions
    | TruncateOptions
    | HashOptions
    | CastOptions
    | TimestampOptions
    | InsertFieldOptions
    | InsertHeaderOptions
    | DropHeadersOptions
    | HeaderToValueOptions
    | ValueToHeaderOptions
    | HoistOptions
    | ExtractOptions
    | ValueToKeyOptions
    | FlattenOptions
    | SchemaOptions
    | PartitionOptions
    | UnwrapStepOptions
)

TRANSFORMS: Final[Mapping[str, type[Any]]] = {
    next(f for f in dataclasses.fields(cls) if f.name == "type").metadata["doc"]: cls
    for cls in Transform.__args__
}
"""Option classes by type."""

_NEEDS_ONE: Final[Mapping[str, tuple[str, ...]]] = {
    "fields": ("include", "exclude", "renames"),
    "cast": ("fields", "to"),
    "insert_field": ("topic_field", "partition_field", "timestamp_field", "static_field"),
    "schema": ("name", "version"),
}


def read_transforms(given: Any) -> Any:
    """Parse a list of transforms; anything else is returned unchanged.

    Raises:
        ConfigurationError: Names each invalid option by its path.
    """
    if not isinstance(given, (list, tuple)):
        return given
    parsed, problems = [], []
    for index, item in enumerate(given):
        path = f"publish.transforms[{index}]"
        try:
            parsed.append(_read(item, path))
        except ConfigurationError as error:
            problems.append(error)
    if problems:
        raise joined(problems)
    return tuple(parsed)


def _read(item: Any, path: str) -> Any:
    if dataclasses.is_dataclass(item):
        return item
    name = str(item.get("type", "")) if isinstance(item, Mapping) else ""
    if name not in TRANSFORMS:
        raise ConfigurationError(
            f"invalid value for option {path}.type",
            expected=f"one of {', '.join(TRANSFORMS)}",
            found=repr(name),
        )
    parsed = parse(TRANSFORMS[name], item, path)
    needed = _NEEDS_ONE.get(name, ())
    if needed and all(getattr(parsed, field) in ("", (), {}, None) for field in needed):
        raise ConfigurationError(f"option {path} has no effect", expected=f"{' or '.join(needed)}")
    _validate_combination(parsed, path)
    return parsed


def _validate_combination(parsed: Any, path: str) -> None:
    """Validate combinations of options."""
    if isinstance(parsed, (HeaderToValueOptions, ValueToHeaderOptions)) and len(parsed.fields) != len(
        parsed.headers
    ):
        raise ConfigurationError(f"invalid value for option {path}", expected="as many fields as headers")
    if isinstance(parsed, CastOptions) and parsed.to and parsed.fields:
        raise ConfigurationError(f"invalid value for option {path}", expected="fields, or to")
    if isinstance(parsed, TimestampOptions) and parsed.to == "string" and not parsed.format:
        raise ConfigurationError(f"option {path}.format is missing", expected="the format of the string")
    if (
        isinstance(parsed, LogicalTableOptions)
        and parsed.key_field_regex
        and not parsed.key_field_replacement
    ):
        raise ConfigurationError(
            f"option {path}.key_field_replacement is missing", expected="the value of the field"
        )
