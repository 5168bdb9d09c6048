"""Transforms of fields of keys and values, as functions from column to column.

Schemas change as in Kafka Connect 4.3: a rebuilt struct keeps name, version and parameters, but neither
``optional`` nor default; a field with a new type loses its schema name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.text_digests import digests
from airflow_cdc_provider.events.connect import ConnectSchema, ConnectType
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.events.transforms.columns import Column, at_path, typed
from airflow_cdc_provider.events.transforms.java_dates import read, written
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.products import saturated

_TIMESTAMP: Final = "org.apache.kafka.connect.data.Timestamp"
_DATE: Final = "org.apache.kafka.connect.data.Date"
_TIME: Final = "org.apache.kafka.connect.data.Time"
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_DAY_MS: Final = 86_400_000
_CONNECT_TYPES: Final[Mapping[str, tuple[ConnectType, pa.DataType]]] = {
    "int8": ("int8", pa.int8()),
    "int16": ("int16", pa.int16()),
    "int32": ("int32", pa.int32()),
    "int64": ("int64", pa.int64()),
    "float32": ("float", pa.float32()),
    "float64": ("double", pa.float64()),
    "boolean": ("boolean", pa.bool_()),
    "string": ("string", pa.utf8()),
}
_UNITS: Final[Mapping[str, tuple[int, int]]] = {
    "seconds": (1000, 1),
    "milliseconds": (1, 1),
    "microseconds": (1, 1000),
    "nanoseconds": (1, 1_000_000),
}
"""Multiplier and divisor for the conversion to milliseconds."""


def chosen_fields(
    column: Column, include: Sequence[str], exclude: Sequence[str], renames: Mapping[str, str]
) -> Column:
    """Include, exclude and rename fields (ReplaceField); supports paths."""
    if not column.is_struct():
        return column
    members = [
        (renames.get(name, name), member)
        for name, member in column.members()
        if name not in exclude and (not include or name in include)
    ]
    column = column.with_members(members).without_options()
    names = {name for name, _ in members}
    for path in exclude:
        if "." in path and path not in names:
            column = at_path(column, path, lambda field: None)
    for path, new in renames.items():
        if "." in path and path not in names:
            column = _renamed(column, path, new)
    return column


def _renamed(column: Column, path: str, new: str) -> Column:
    parent, _, old = path.rpartition(".")

    def rename(struct: Column) -> Column:
        if not struct.is_struct():
            return struct
        return struct.with_members(
            [(new if name == old else name, member) for name, member in struct.members()]
        )

    return at_path(column, parent, rename)


def masked(column: Column, fields: Sequence[str], replacement: str) -> Column:
    """Replace fields with an empty value or a replacement (MaskField); nulls stay null.

    Raises:
        ConfigurationError: A field's type can't be masked with this replacement.
    """
    for path in fields:
        column = at_path(column, path, lambda field: _hidden(field, replacement))
    return column


def _hidden(column: Column, replacement: str) -> Column:
    kind = column.schema.type
    values = typed(column)
    if replacement:
        value: Any = replacement
        if kind != "string":
            if kind not in ("int8", "int16", "int32", "int64", "float", "double"):
                raise ConfigurationError(
                    "only numbers and text can be masked with a replacement", found=f"type {kind}"
                )
            try:
                value = pa.scalar(replacement).cast(values.type)
            except pa.ArrowInvalid:
                raise ConfigurationError(
                    "the replacement of a mask is not a valid number for its field",
                    expected=kind,
                    found=repr(replacement),
                ) from None
        return Column(column.schema, _constant(column, values, value))
    if kind in ("array", "map"):
        if pa.types.is_null(values.type):
            return column
        return Column(column.schema, _empties(values))
    nothing: Mapping[str, Any] = {"string": "", "boolean": False}
    if kind == "struct" or (kind == "bytes" and column.schema.name != _DECIMAL):
        raise ConfigurationError(
            f"a field of type {kind} can't be masked", remedy="exclude it with a transform of type fields"
        )
    value = b"\x00" if kind == "bytes" else nothing.get(kind, 0)
    return Column(column.schema, _constant(column, values, value))


def _empties(values: pa.Array) -> pa.Array:
    """Return empty arrays or maps; nulls stay null."""
    kind, count = values.type, len(values)
    validity = values.is_valid().buffers()[1] if values.null_count else None
    offsets = pa.py_buffer(np.zeros(count + 1, np.int32))
    elements = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
    return pa.Array.from_buffers(kind, count, [validity, offsets], children=[pa.array([], elements)])


def _constant(column: Column, values: pa.Array, value: Any) -> pa.Array:
    """Replace values; nulls stay null, unless the schema has a default."""
    scalar = value.cast(values.type) if isinstance(value, pa.Scalar) else pa.scalar(value, values.type)
    if column.schema.default is not None:
        return pa.repeat(scalar, len(values))
    return pc.if_else(values.is_valid(), scalar, pa.scalar(None, values.type))


def truncated(column: Column, fields: Sequence[str], length: int) -> Column:
    """Truncate strings; other fields are unchanged (column.truncate.to.N.chars)."""

    def cut(field: Column) -> Column:
        if field.schema.type != "string":
            return field
        return Column(field.schema, pc.utf8_slice_codeunits(typed(field), 0, length))

    for path in fields:
        column = at_path(column, path, cut)
    return column


def hashed(
    column: Column, fields: Sequence[str], algorithm: str, salt: bytes, *, as_java: bool, length: int
) -> Column:
    """Replace strings with their hash (column.mask.hash.v2.ALGORITHM.with.salt.SALT).

    Raises:
        ConfigurationError: A field is not a string.
    """

    def hide(field: Column) -> Column:
        if field.schema.type != "string":
            raise ConfigurationError(
                "only strings can be hashed",
                found=f"type {field.schema.type}",
                remedy="cast it to string first with a transform of type cast",
            )
        found = digests(algorithm, salt, typed(field), as_java=as_java, length=length)
        return Column(field.schema, found)

    for path in fields:
        column = at_path(column, path, hide)
    return column


def cast_fields(column: Column, fields: Mapping[str, str], to: str) -> Column:
    """Cast fields, or the whole value or key (Cast), with Java's conversion rules.

    Raises:
        ConfigurationError: A field's type can't be cast, or a text is not a number.
    """
    if to:
        return _cast(column, to, keeps_name=True)
    for path, kind in fields.items():
        column = at_path(column, path, lambda field, kind=kind: _cast(field, kind))  # type: ignore[misc]  # bound now
    return column


def _cast(column: Column, to: str, *, keeps_name: bool = False) -> Column:
    connect, arrow = _CONNECT_TYPES[to]
    old = column.schema
    schema = ConnectSchema(connect, optional=old.optional)
    if keeps_name:
        schema = replace(schema, name=old.name, version=old.version, doc=old.doc, parameters=old.parameters)
    if (
        old.type in ("struct", "array", "map")
        or (old.type == "bytes" and to != "string")
        or old.name == _DECIMAL
    ):
        raise ConfigurationError(
            f"a field of type {old.type} can't be cast", expected="text, number or boolean"
        )
    if old.default is not None:
        plain = Column(replace(old, default=None), pa.array([old.default], typed(column).type))
        schema = replace(schema, default=_converted(plain, to, arrow)[0].as_py())
    return Column(schema, _converted(column, to, arrow))


def _converted(column: Column, to: str, arrow: pa.DataType) -> pa.Array:
    values = typed(column)
    kind = column.schema.type
    if to == "string":
        return _as_text(column, values)
    if kind == "string":
        return _of_text(values, to, arrow)
    if to == "boolean":
        if kind == "boolean":
            return values
        whole = _truncated(values) if kind in ("float", "double") else values
        return pc.not_equal(whole, pa.scalar(0, whole.type))
    if kind == "boolean":
        return values.cast(pa.int8()).cast(arrow)
    if pa.types.is_floating(arrow):
        return values.cast(arrow, safe=False)
    return _wrapped(values, arrow)


def _as_text(column: Column, values: pa.Array) -> pa.Array:
    kind = column.schema.type
    if kind == "string":
        return values
    if column.schema.name in (_TIMESTAMP, _DATE, _TIME):
        return _as_java_date(column.schema.name, values)
    plain = ConnectSchema(kind, optional=True)
    texts = pc.if_else(values.is_valid(), to_json(plain, values), pa.scalar(None, pa.large_utf8()))
    return pc.utf8_trim(texts, characters='"').cast(pa.utf8())


def _as_java_date(name: str, values: pa.Array) -> pa.Array:
    """Write dates like Connect's ``Values``: the format depends on the value, not on the type."""
    numbers = values.cast(pa.int64())
    millis = pc.multiply(numbers, _DAY_MS) if name == _DATE else numbers
    whole_days = pc.equal(millis, pc.multiply(pc.divide(millis, _DAY_MS), _DAY_MS))
    texts = pc.if_else(
        whole_days, written("yyyy-MM-dd", millis), written("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", millis)
    )
    short = pc.less(millis, _DAY_MS)
    return pc.if_else(short, written("HH:mm:ss.SSS'Z'", millis), texts).cast(pa.utf8())


def _of_text(values: pa.Array, to: str, arrow: pa.DataType) -> pa.Array:
    if to == "boolean":
        return pc.equal(pc.utf8_lower(values), "true")
    try:
        if pa.types.is_floating(arrow):
            return pc.utf8_ltrim(pc.utf8_trim_whitespace(values), characters="+").cast(arrow)
        return pc.utf8_ltrim(values, characters="+").cast(arrow)
    except pa.ArrowInvalid:
        raise ConfigurationError(
            f"a text can't be cast to {to}",
            remedy="select records with when, or don't cast the field",
        ) from None


def _truncated(values: pa.Array) -> pa.Array:
    """Return integer parts like Java's ``(long)``: saturating, NaN is 0."""
    return _whole(values, np.int64)


def _whole(values: pa.Array, kind: Any) -> pa.Array:
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    bounds = np.iinfo(kind)
    high, low = numbers >= float(bounds.max), numbers <= float(bounds.min)
    inside = np.where(high | low | np.isnan(numbers), 0, np.trunc(numbers))
    whole = inside.astype(kind)
    whole[high], whole[low] = bounds.max, bounds.min
    return pa.array(whole, mask=values.is_null().to_numpy(zero_copy_only=False))


def _wrapped(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Narrow integers to a width, keeping the low bits, as in Java."""
    if pa.types.is_floating(values.type):
        values = _whole(values, np.int64 if arrow == pa.int64() else np.int32)
    missing = values.is_null().to_numpy(zero_copy_only=False)
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(numbers.astype(arrow.to_pandas_dtype()), arrow, mask=missing)


def converted_time(column: Column, field: str, to: str, form: str, precision: str) -> Column:
    """Convert a timestamp (TimestampConverter).

    Raises:
        ConfigurationError: The field is not a time, or a text doesn't match the format.
    """

    def convert(one: Column) -> Column:
        return _converted_time(one, to, form, precision)

    return at_path(column, field, convert) if field else convert(column)


def _converted_time(column: Column, to: str, form: str, precision: str) -> Column:
    millis = _millis(column, form, precision)
    optional = column.schema.optional
    if to == "string":
        texts = written(form, millis).cast(pa.utf8())
        return Column(ConnectSchema("string", optional=optional), texts)
    if to == "unix":
        times, per = _UNITS[precision]
        number = saturated(millis, per) if per > 1 else _toward_zero(millis, times)
        return Column(ConnectSchema("int64", optional=optional), number)
    if to == "Timestamp":
        return Column(ConnectSchema("int64", optional=optional, name=_TIMESTAMP, version=1), millis)
    days, in_day = np.divmod(millis.fill_null(0).to_numpy(zero_copy_only=False), _DAY_MS)
    missing = millis.is_null().to_numpy(zero_copy_only=False)
    if to == "Date":
        days = pa.array(days.astype(np.int32), mask=missing)  # the low bits, as in Java
        return Column(ConnectSchema("int32", optional=optional, name=_DATE, version=1), days)
    in_day = pa.array(in_day.astype(np.int32), mask=missing)
    return Column(ConnectSchema("int32", optional=optional, name=_TIME, version=1), in_day)


def _millis(column: Column, form: str, precision: str) -> pa.Array:
    name, kind = column.schema.name, column.schema.type
    values = typed(column)
    if name in (_TIMESTAMP, _TIME):
        return values.cast(pa.int64())
    if name == _DATE:
        return pc.multiply(values.cast(pa.int64()), _DAY_MS)
    if kind == "string":
        if not form:
            raise ConfigurationError(
                "text can't be parsed as a time without a format", expected="option format"
            )
        return read(form, values)
    if kind == "int64":
        times, per = _UNITS[precision]
        return saturated(values, times) if times > 1 else _toward_zero(values, per)
    raise ConfigurationError(
        "the field can't be converted to a time",
        expected="a 64-bit integer, a string, or Connect's Date, Time or Timestamp",
        found=f"type {kind}" + (f" {name}" if name else ""),
    )


def _toward_zero(numbers: pa.Array, divisor: int) -> pa.Array:
    """Divide integers like Java's ``TimeUnit``."""
    return pc.divide(numbers, pa.scalar(divisor, pa.int64())) if divisor > 1 else numbers


def flattened(column: Column, delimiter: str) -> Column:
    """Flatten nested structs (Flatten).

    Raises:
        ConfigurationError: A field is a map, or two fields would have the same name.
    """
    if not column.is_struct():
        return column
    return column.with_members(list(_flat(column, "", delimiter, column.schema.optional))).without_options()


def _flat(column: Column, prefix: str, delimiter: str, optional: bool) -> list[tuple[str, Column]]:
    found: list[tuple[str, Column]] = []
    for name, _ in column.schema.fields:
        full = f"{prefix}{delimiter}{name}" if prefix else name
        member = column.member(name)
        assert member is not None
        loose = optional or member.schema.optional
        if member.schema.type == "map":
            raise ConfigurationError(f"the map {full} can't be flattened", remedy="exclude it first")
        if member.schema.type == "struct":
            found += _flat(member, full, delimiter, loose)
        else:
            found.append((full, Column(replace(member.schema, optional=loose), member.values)))
    return found


def hoisted(column: Column, field: str) -> Column:
    """Wrap the value or key in a struct (HoistField); nulls stay null."""
    schema = ConnectSchema("struct", fields=((field, column.schema),))
    missing = column.values.is_null() if column.values.null_count else None
    return Column(schema, pa.StructArray.from_arrays([typed(column)], [field], mask=missing))


def extracted(column: Column, field: str) -> Column:
    """Replace the value or key with a field (ExtractField).

    Raises:
        ConfigurationError: The field doesn't exist.
    """
    found = find(column, field)
    if found is None:
        raise ConfigurationError(
            f"field {field} doesn't exist",
            expected=f"one of {', '.join(name for name, _ in column.schema.fields)}",
            remedy="correct it, or select topics that have it with when.topic",
        )
    return found


def find(column: Column, path: str) -> Column | None:
    """Return the field of a path; None if it doesn't exist."""
    whole = column.member(path)
    if whole is not None:
        return whole
    head, _, rest = path.partition(".")
    inner = column.member(head) if rest else None
    return find(inner, rest) if inner is not None else None


def named_schema(column: Column, name: str, version: int | None) -> Column:
    """Set name and version of the schema (SetSchemaMetadata)."""
    schema = column.schema
    return Column(
        replace(schema, name=name or schema.name, version=schema.version if version is None else version),
        column.values,
    )


def with_fields(column: Column, added: Sequence[tuple[str, Callable[[int], Column]]]) -> Column:
    """Add fields to a struct (InsertField).

    Args:
        column: The struct.
        added: Names, and functions that build a column with a number of rows.
    """
    count = len(column.values)
    members = [*column.members(), *((name, make(count)) for name, make in added)]
    return column.with_members(members).without_options()
