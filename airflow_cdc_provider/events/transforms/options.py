"""Options of transforms, a class per type: what ``publish.transforms`` lists. Light: read by DAG files.

Each has ``type``, by which its class is found, and ``when``, which chooses the records that it is for.
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
from airflow_cdc_provider.events.transforms.java_patterns import wrong_pattern, wrong_replacement
from airflow_cdc_provider.exceptions import ConfigurationError, joined
from airflow_cdc_provider.options import option, parse
from airflow_cdc_provider.secrets import is_reference

_ON: Final = "Whether it changes the record's value or its key"
_TOMBSTONES: Final = (
    "What becomes of records without value: keep: they pass as they are; drop; evaluate: the expression is "
    "asked, and value.x is null in it (null.handling.mode)"
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
        return "at least one name, none twice and none empty"
    return ""


def _name(value: str) -> str:
    return "" if value else "a name"


def _new_names(values: Mapping[str, str]) -> str:
    return "" if all(values) and all(values.values()) else "old name and new name"


def _casts(values: Mapping[str, str]) -> str:
    wrong = [kind for kind in values.values() if kind not in CAST_TYPES]
    return f"types of {', '.join(CAST_TYPES)} ({wrong[0]!r})" if wrong else ""


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
    return "${env:NAME} or ${file:PATH}, where the salt is: in the declaration all would see it"


def _algorithm(value: str) -> str:
    import hashlib

    known = value.replace("-", "").lower() in hashlib.algorithms_available
    return "" if known else "an algorithm of hashes, as SHA-256"


@dataclass(frozen=True, kw_only=True)
class When:
    """Which records a transform is for: those that meet all that is given, or with ``negate`` all others."""

    topic: str = option(
        "Regular expression on the whole name of the topic (TopicNameMatches)", "", check=_pattern
    )
    tombstone: bool | None = option("Records without value, or those with one (RecordIsTombstone)", None)
    header: str = option("Records that have this header (HasHeaderKey)", "")
    condition: str = option("An expression", "", check=_optional_expression)
    negate: bool = option("The other records", False)


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """Keeps records for which a condition holds."""

    type: Literal["filter"] = option("filter")
    condition: str = option("An expression", check=partial(_expression, "boolean"))
    tombstones: Literal["keep", "drop", "evaluate"] = option(_TOMBSTONES, "keep")
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class DropOptions:
    """Drops the records that it is for."""

    type: Literal["drop"] = option("drop")
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class RouteOptions:
    """Sends records to the topic that an expression gives."""

    type: Literal["route"] = option("route")
    topic: str = option(
        "An expression that gives a text; null: the topic stays", check=partial(_expression, "text")
    )
    tombstones: Literal["keep", "drop", "evaluate"] = option(_TOMBSTONES, "keep")
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class RenameTopicOptions:
    """Renames topics by a regular expression."""

    type: Literal["rename_topic"] = option("rename_topic")
    regex: str = option("On the whole name", check=_needed_pattern)
    replacement: str = option("The new name, with $1 or ${group}", check=wrong_replacement)
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class LogicalTableOptions:
    """Sends tables to one topic, whose keys then tell from which of them a record is."""

    type: Literal["logical_table"] = option("logical_table")
    topic_regex: str = option("On the whole name of the topic", check=_needed_pattern)
    topic_replacement: str = option("The new name, with $1 or ${group}", check=wrong_replacement)
    unique_keys: bool = option("Keys get a field that tells the table (key.enforce.uniqueness)", True)
    key_field_name: str = option("That field", "__dbz__physicalTableIdentifier", check=_name)
    key_field_regex: str = option(
        "On the whole name of the old topic; default: all of it", "", check=_pattern
    )
    key_field_replacement: str = option("What the field holds then", "", check=wrong_replacement)
    schema_names: Literal["none", "avro", "avro_unicode"] = option(
        "How names of schemas are made fit for Avro", "none"
    )
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class FieldsOptions:
    """Keeps, leaves out and renames fields."""

    type: Literal["fields"] = option("fields")
    target: Literal["value", "key"] = option(_ON, "value")
    include: tuple[str, ...] = option("Fields to keep; default: all", ())
    exclude: tuple[str, ...] = option("Fields to leave out, or paths of them (after.password)", ())
    renames: Mapping[str, str] = option("New names by old names, or by paths of them", {}, check=_new_names)
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """Puts the empty value of their type, or another, into fields."""

    type: Literal["mask"] = option("mask")
    target: Literal["value", "key"] = option(_ON, "value")
    fields: tuple[str, ...] = option("The fields, or paths of them (after.email)", check=_names)
    replacement: str = option("What is put in; default: empty text, 0, false, empty list", "")
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class TruncateOptions:
    """Cuts texts."""

    type: Literal["truncate"] = option("truncate")
    target: Literal["value", "key"] = option(_ON, "value")
    fields: tuple[str, ...] = option("The fields, or paths of them (after.note)", check=_names)
    length: int = option("Characters that stay", minimum=0)
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class HashOptions:
    """Puts the digest of salt and text into fields."""

    type: Literal["hash"] = option("hash")
    target: Literal["value", "key"] = option(_ON, "value")
    fields: tuple[str, ...] = option("The fields, or paths of them (after.email)", check=_names)
    algorithm: str = option("As SHA-256", "SHA-256", check=_algorithm)
    salt: str = option(
        "Where the salt is: ${env:NAME} or ${file:PATH}, for who makes the events", check=_salt, secret=True
    )
    version: Literal["v2", "v1"] = option(
        "v2: of the text's UTF-8; v1: as Debezium's first version hashes", "v2"
    )
    length: int = option("Characters of the digest in hexadecimal that stay; 0: all", 0, minimum=0)
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class CastOptions:
    """Gives fields, or the whole value or key, other types."""

    type: Literal["cast"] = option("cast")
    target: Literal["value", "key"] = option(_ON, "value")
    fields: Mapping[str, str] = option("Types by fields, or by paths of them", {}, check=_casts)
    to: str = option("Type of the whole value or key instead", "", check=_cast)
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class TimestampOptions:
    """Shows a field's time in another form."""

    type: Literal["timestamp"] = option("timestamp")
    target: Literal["value", "key"] = option(_ON, "value")
    field: str = option("The field, or a path of it; default: the whole value or key", "")
    to: Literal["string", "unix", "Date", "Time", "Timestamp"] = option("The form")
    format: str = option("Of texts: as SimpleDateFormat writes them, in UTC", "", check=_date_format)
    precision: Literal["seconds", "milliseconds", "microseconds", "nanoseconds"] = option(
        "Of whole numbers (unix.precision)", "milliseconds"
    )
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class InsertFieldOptions:
    """Adds fields that tell of the record."""

    type: Literal["insert_field"] = option("insert_field")
    target: Literal["value", "key"] = option(_ON, "value")
    topic_field: str = option("Field for the topic; with ! behind it, it is not optional", "")
    partition_field: str = option("Field for the partition, likewise", "")
    timestamp_field: str = option("Field for the record's time, likewise", "")
    static_field: str = option("Field for static_value, likewise", "")
    static_value: str = option("A text", "")
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class InsertHeaderOptions:
    """Adds a header, or replaces it."""

    type: Literal["insert_header"] = option("insert_header")
    header: str = option("Its name", check=_name)
    value: str = option("Its value; a number, true and false are no texts")
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class DropHeadersOptions:
    """Leaves out headers."""

    type: Literal["drop_headers"] = option("drop_headers")
    headers: tuple[str, ...] = option("Their names", check=_names)
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class HeaderToValueOptions:
    """Makes fields of headers."""

    type: Literal["header_to_value"] = option("header_to_value")
    headers: tuple[str, ...] = option("Their names", check=_names)
    fields: tuple[str, ...] = option("Names of fields, or paths of them, in the same order", check=_names)
    operation: Literal["move", "copy"] = option("Whether the headers go or stay")
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class ValueToHeaderOptions:
    """Makes headers of fields."""

    type: Literal["value_to_header"] = option("value_to_header")
    target: Literal["value", "key"] = option("Whether the fields are the value's or the key's", "value")
    fields: tuple[str, ...] = option("Their names", check=_names)
    headers: tuple[str, ...] = option("Names of headers in the same order", check=_names)
    operation: Literal["move", "copy"] = option("Whether the fields go or stay")
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class HoistOptions:
    """Puts the value or key into a field."""

    type: Literal["hoist"] = option("hoist")
    target: Literal["value", "key"] = option(_ON, "value")
    field: str = option("The field", check=_name)
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class ExtractOptions:
    """Puts a field in the place of the value or key."""

    type: Literal["extract"] = option("extract")
    target: Literal["value", "key"] = option(_ON, "value")
    field: str = option("The field, or a path of it", check=_name)
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class ValueToKeyOptions:
    """Makes the key of fields of the value."""

    type: Literal["value_to_key"] = option("value_to_key")
    fields: tuple[str, ...] = option("Their names", check=_names)
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class FlattenOptions:
    """Makes fields of structs fields of their parents."""

    type: Literal["flatten"] = option("flatten")
    target: Literal["value", "key"] = option(_ON, "value")
    delimiter: str = option("Stands between the names", ".")
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """Names the schema of the value or key."""

    type: Literal["schema"] = option("schema")
    target: Literal["value", "key"] = option(_ON, "value")
    name: str = option("Its name; default: as it is", "")
    version: int | None = option("Its version; default: as it is", None)
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """Chooses partitions by fields of the value."""

    type: Literal["partition"] = option("partition")
    fields: tuple[str, ...] = option(
        "Paths of fields; change.x is after.x, and before.x of a delete", check=_names
    )
    partitions: int = option("Partitions of the topic", minimum=1)
    when: When = option("For which records", When)


@dataclass(frozen=True, kw_only=True)
class UnwrapStepOptions:
    """Makes plain rows of events in an envelope with rows."""

    type: Literal["unwrap"] = option("unwrap")
    deletes: Literal["drop", "tombstone", "delete-to-tombstone", "rewrite", "rewrite-with-tombstone"] = (
        option("What becomes of deletes, as in publish.unwrap", "tombstone")
    )
    add_fields: tuple[str, ...] = option(
        "Fields of the envelope that rows have too: op, source.ts_ms ...", ()
    )
    add_fields_prefix: str = option("Leads their names", "__")
    add_headers: tuple[str, ...] = option("Likewise, for headers", ())
    add_headers_prefix: str = option("Leads their names", "__")
    when: When = option("For which records", When)


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
"""Options by the name of their type."""

_NEEDS_ONE: Final[Mapping[str, tuple[str, ...]]] = {
    "fields": ("include", "exclude", "renames"),
    "cast": ("fields", "to"),
    "insert_field": ("topic_field", "partition_field", "timestamp_field", "static_field"),
    "schema": ("name", "version"),
}


def read_transforms(given: Any) -> Any:
    """Make options of a list of plain data; anything else is returned as it is.

    Raises:
        ConfigurationError: Names each wrong option by its place.
    """
    if not isinstance(given, (list, tuple)):
        return given
    made, problems = [], []
    for number, one in enumerate(given):
        place = f"publish.transforms[{number}]"
        try:
            made.append(_read(one, place))
        except ConfigurationError as error:
            problems.append(error)
    if problems:
        raise joined(problems)
    return tuple(made)


def _read(one: Any, place: str) -> Any:
    if dataclasses.is_dataclass(one):
        return one
    name = str(one.get("type", "")) if isinstance(one, Mapping) else ""
    if name not in TRANSFORMS:
        raise ConfigurationError(
            f"invalid value for option {place}.type", expected=f"one of {', '.join(TRANSFORMS)}", found=repr(name)
        )
    made = parse(TRANSFORMS[name], one, place)
    needed = _NEEDS_ONE.get(name, ())
    if needed and all(getattr(made, field) in ("", (), {}, None) for field in needed):
        raise ConfigurationError(f"option {place} says nothing", expected=f"{' or '.join(needed)}")
    _refuse_halves(made, place)
    return made


def _refuse_halves(made: Any, place: str) -> None:
    """Refuse options that only make sense together."""
    if isinstance(made, (HeaderToValueOptions, ValueToHeaderOptions)) and len(made.fields) != len(
        made.headers
    ):
        raise ConfigurationError(f"invalid value for option {place}", expected="as many fields as headers")
    if isinstance(made, CastOptions) and made.to and made.fields:
        raise ConfigurationError(f"invalid value for option {place}", expected="fields, or to")
    if isinstance(made, TimestampOptions) and made.to == "string" and not made.format:
        raise ConfigurationError(f"option {place}.format is missing", expected="the form of the text")
    if isinstance(made, LogicalTableOptions) and made.key_field_regex and not made.key_field_replacement:
        raise ConfigurationError(
            f"option {place}.key_field_replacement is missing", expected="what the field holds"
        )
