"""Evaluation of expressions on record columns, with one Arrow kernel call per operation.

Integers have 64 bits, other numbers are doubles, text is Arrow's large string, so results don't depend on the
types of a batch's columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.encoder import Envelope
from airflow_cdc_provider.events.transforms.columns import Column
from airflow_cdc_provider.events.transforms.expression_tree import (
    Constant,
    Expression,
    Kind,
    Node,
    Operation,
    Reference,
)
from airflow_cdc_provider.exceptions import ConfigurationError, without_values

_TEXT: Final = pa.large_utf8()
_NULLS: Final[Mapping[Kind, pa.DataType]] = {
    "any": pa.null(),
    "null": pa.null(),
    "number": pa.int64(),
    "text": _TEXT,
    "boolean": pa.bool_(),
}
_JSON: Final = "io.debezium.data.Json"
_WHOLE: Final = r"^\s*[+-]?[0-9]{1,18}\s*$"
_NUMBER: Final = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"


@dataclass(frozen=True)
class Scope:
    """Records to evaluate an expression on.

    Args:
        envelope: The records.
        lenient: Whether missing fields are null, because documents have no fixed fields.
    """

    envelope: Envelope
    lenient: bool = False

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.envelope.key)


def condition(expression: Expression, scope: Scope) -> pa.BooleanArray:
    """Return for which records a condition is true; null if unknown.

    Raises:
        ConfigurationError: A field doesn't exist or has a type that the expression doesn't support.
    """
    return _whole(_Evaluator(expression, scope).of(expression.node, "boolean"), scope.count, pa.bool_())


def text(expression: Expression, scope: Scope) -> pa.LargeStringArray:
    """Return the text result of an expression for each record.

    Raises:
        ConfigurationError: As for :func:`condition`.
    """
    return _whole(_Evaluator(expression, scope).of(expression.node, "text"), scope.count, _TEXT)


def _whole(found: Any, count: int, kind: pa.DataType) -> pa.Array:
    if isinstance(found, pa.Scalar):
        return pa.repeat(found.cast(kind), count)
    return found.cast(kind)


class _Evaluator:
    def __init__(self, expression: Expression, scope: Scope) -> None:
        self._text = expression.text
        self._scope = scope

    def of(self, node: Node, kind: Kind) -> Any:
        """Return a node's values, array or scalar, and check their type."""
        found = self._values(node)
        actual = _kind_of(found.type)
        if kind != "any" and actual not in (kind, "null"):
            raise self._error(node.where, f"a {kind}", actual)
        return found.cast(_NULLS[kind]) if actual == "null" and kind != "any" else found

    def _values(self, node: Node) -> Any:
        if isinstance(node, Constant):
            return pa.scalar(
                node.value, _NULLS[node.kind] if not isinstance(node.value, float) else pa.float64()
            )
        if isinstance(node, Reference):
            return self._field(node)
        return getattr(self, f"_do_{node.name}", self._plain)(node)

    def _plain(self, node: Operation) -> Any:
        kinds, function = _PLAIN[node.name]
        arguments = [self.of(argument, kind) for argument, kind in zip(node.arguments, kinds, strict=False)]
        try:
            return function(*arguments)
        except pa.ArrowInvalid as error:
            raise ConfigurationError(
                f"the expression {self._text!r} fails at {node.where}",
                found=without_values(error),
                remedy="with whole numbers that overflow, cast one as double; patterns are RE2's",
            ) from None

    def _pair(self, node: Operation) -> tuple[Any, Any]:
        one, other = (self.of(argument, "any") for argument in node.arguments)
        kinds = [_kind_of(one.type), _kind_of(other.type)]
        if "null" in kinds:
            known = next((value.type for value in (one, other) if _kind_of(value.type) != "null"), pa.bool_())
            return one.cast(known) if kinds[0] == "null" else one, other.cast(known) if kinds[
                1
            ] == "null" else other
        if kinds[0] != kinds[1] or kinds[0] == "struct":
            raise self._error(node.where, "operands of one type", " and ".join(kinds))
        return _of_one_width(one, other)

    def _compared(self, node: Operation, function: Callable[[Any, Any], Any]) -> Any:
        return function(*self._pair(node))

    def _do_equal(self, node: Operation) -> Any:
        return self._compared(node, pc.equal)

    def _do_not_equal(self, node: Operation) -> Any:
        return self._compared(node, pc.not_equal)

    def _do_less(self, node: Operation) -> Any:
        return self._compared(node, pc.less)

    def _do_less_equal(self, node: Operation) -> Any:
        return self._compared(node, pc.less_equal)

    def _do_greater(self, node: Operation) -> Any:
        return self._compared(node, pc.greater)

    def _do_greater_equal(self, node: Operation) -> Any:
        return self._compared(node, pc.greater_equal)

    def _do_same(self, node: Operation) -> Any:
        one, other = self._pair(node)
        both_null = pc.and_(pc.is_null(one), pc.is_null(other))
        return pc.or_(pc.coalesce(pc.equal(one, other), pa.scalar(False)), both_null)

    def _do_not_same(self, node: Operation) -> Any:
        return pc.invert(self._do_same(node))

    def _do_and(self, node: Operation) -> Any:
        return reduce(pc.and_kleene, (self.of(argument, "boolean") for argument in node.arguments))

    def _do_or(self, node: Operation) -> Any:
        return reduce(pc.or_kleene, (self.of(argument, "boolean") for argument in node.arguments))

    def _do_not(self, node: Operation) -> Any:
        return pc.invert(self.of(node.arguments[0], "boolean"))

    def _do_is_null(self, node: Operation) -> Any:
        return pc.is_null(self._values(node.arguments[0]))

    def _do_in(self, node: Operation) -> Any:
        subject, *others = node.arguments
        known = [other for other in others if isinstance(other, Constant) and other.value is not None]
        found = self._values(subject)
        kinds = {_kind_of(found.type), *(other.kind for other in known)} - {"null"}
        if len(kinds) > 1 or "struct" in kinds:
            raise self._error(node.where, "operands of one type", " and ".join(sorted(kinds)))
        if not known or _kind_of(found.type) == "null":
            return pa.scalar(None, pa.bool_())
        values = [other.value for other in known]
        if isinstance(found, pa.Scalar):
            inside: Any = pa.scalar(found.as_py() in values if found.is_valid else None, pa.bool_())
        else:
            mixed = any(isinstance(value, float) for value in values)
            kind = pa.float64() if mixed or pa.types.is_floating(found.type) else found.type
            doubles = pa.types.is_floating(kind)
            looked_up = pc.add(_double(found), 0.0) if doubles else found  # 0 and -0 are equal
            inside = pc.is_in(looked_up, value_set=pa.array(values, kind))
            inside = pc.if_else(pc.is_valid(found), inside, pa.scalar(None, pa.bool_()))
        if len(known) < len(others):  # with a null among them, missing values are unknown
            inside = pc.if_else(inside, inside, pa.scalar(None, pa.bool_()))
        return inside

    def _do_case(self, node: Operation) -> Any:
        half = len(node.arguments) // 2
        conditions, results = node.arguments[:half], node.arguments[half:]
        found = self._alike(node, [self.of(result, "any") for result in results])
        chosen = found[-1]
        for one, result in zip(reversed(conditions), reversed(found[:-1]), strict=True):
            holds = pc.coalesce(self.of(one, "boolean"), pa.scalar(False))
            chosen = pc.if_else(holds, result, chosen)
        return chosen

    def _do_coalesce(self, node: Operation) -> Any:
        return pc.coalesce(*self._alike(node, [self.of(argument, "any") for argument in node.arguments]))

    def _alike(self, node: Operation, found: list[Any]) -> list[Any]:
        """Convert values to a common type."""
        kinds = {_kind_of(value.type) for value in found} - {"null"}
        if len(kinds) > 1 or "struct" in kinds:
            raise self._error(node.where, "values of one type", " and ".join(sorted(kinds)))
        types = [value.type for value in found if not pa.types.is_null(value.type)]
        kind = pa.float64() if pa.float64() in types else (types or [pa.null()])[0]
        return [pc.cast(value, kind, safe=False) for value in found]

    def _do_concat(self, node: Operation) -> Any:
        texts = [self.of(argument, "text") for argument in node.arguments]
        return pc.binary_join_element_wise(*texts, pa.scalar("", _TEXT))

    def _do_substring(self, node: Operation) -> Any:
        """Return a substring with SQL semantics: positions start at 1, positions outside are ignored."""
        texts = self.of(node.arguments[0], "text")
        bounds = node.arguments[1:]
        if not all(isinstance(bound, Constant) and isinstance(bound.value, int) for bound in bounds):
            raise self._error(node.where, "whole numbers as bounds of substring", "something else")
        first, *length = (int(bound.value) for bound in bounds)  # type: ignore[union-attr,arg-type]  # see above
        start = first - 1
        if not length:
            return pc.utf8_slice_codeunits(texts, max(start, 0))
        stop = max(start + length[0], 0)
        return pc.utf8_slice_codeunits(texts, max(start, 0), max(stop, start, 0))

    def _do_cast_bigint(self, node: Operation) -> Any:
        found = self.of(node.arguments[0], "any")
        kind = _kind_of(found.type)
        if kind == "text":
            fits = pc.match_substring_regex(found, _WHOLE)
            whole = pc.utf8_trim_whitespace(pc.if_else(fits, found, pa.scalar(None, _TEXT)))
            return pc.utf8_ltrim(whole, characters="+").cast(pa.int64())
        if kind == "number" and pa.types.is_floating(found.type):
            rounded = pc.round(found, round_mode="half_to_even")
            fits = pc.less(pc.abs(rounded), pa.scalar(float(2**63)))
            return pc.if_else(fits, rounded, pa.scalar(None, pa.float64())).cast(pa.int64())
        return self._cast(node, found, pa.int64())

    def _do_cast_double(self, node: Operation) -> Any:
        found = self.of(node.arguments[0], "any")
        if _kind_of(found.type) == "text":
            trimmed = pc.utf8_trim_whitespace(found)
            fits = pc.match_substring_regex(trimmed, _NUMBER)
            texts = pc.utf8_ltrim(pc.if_else(fits, trimmed, pa.scalar(None, _TEXT)), characters="+")
            return texts.cast(pa.float64())
        return self._cast(node, found, pa.float64())

    def _do_cast_text(self, node: Operation) -> Any:
        return self._cast(node, self.of(node.arguments[0], "any"), _TEXT)

    def _do_cast_boolean(self, node: Operation) -> Any:
        found = self.of(node.arguments[0], "any")
        if _kind_of(found.type) == "text":
            low = pc.utf8_lower(found)
            nothing = pa.scalar(None, pa.bool_())
            true = pc.if_else(pc.equal(low, "true"), pa.scalar(True), nothing)
            return pc.if_else(pc.equal(low, "false"), pa.scalar(False), true)
        if _kind_of(found.type) == "number":
            return pc.not_equal(found, pa.scalar(0))
        return self._cast(node, found, pa.bool_())

    def _cast(self, node: Operation, found: Any, kind: pa.DataType) -> Any:
        if _kind_of(found.type) in ("bytes", "struct"):
            raise self._error(node.where, "a text, number or truth value", _kind_of(found.type))
        return pc.cast(found, kind, safe=False)

    def _field(self, node: Reference) -> Any:
        envelope = self._scope.envelope
        if node.root == "topic":
            topics = pa.array([d.topic for d in envelope.destinations], _TEXT)
            return topics.take(pa.array(envelope.destination))
        if node.root == "headers":
            return (
                plain_texts(envelope.headers[node.path[0]]) if node.path[0] in envelope.headers else _NOTHING
            )
        if node.root in ("partition", "timestamp"):
            actual = envelope.partition if node.root == "partition" else envelope.timestamp
            return pa.scalar(None, pa.int64()) if actual is None else actual.cast(pa.int64())
        column = Column.of(envelope, node.root)
        rest = node.path
        while rest:
            whole = column.member(".".join(rest))  # a name may have dots
            if whole is not None:
                return _wide(whole)
            inner = column.member(rest[0])
            if inner is None:
                return self._missing(node, column.schema, rest[0])
            column, rest = inner, rest[1:]
        return _wide(column)

    def _missing(self, node: Reference, schema: ConnectSchema, name: str) -> Any:
        if schema.type == "struct" and self._scope.lenient:
            return pa.scalar(None)
        if schema.name == _JSON:
            raise ConfigurationError(
                f"the expression {self._text!r} can't look into {node.where}: it is a JSON text",
                remedy="set publish.unwrap.enabled, which shows documents by their fields",
            )
        topics = ", ".join(sorted({d.topic for d in self._scope.envelope.destinations})[:3])
        raise ConfigurationError(
            f"the expression {self._text!r} names {name} at {node.where}, not a field of {topics}",
            expected=f"one of {', '.join(n for n, _ in schema.fields)}" if schema.fields else "",
            remedy="correct it, or choose the topics that have it by when.topic",
        )

    def _error(self, where: str, expected: str, found: str) -> ConfigurationError:
        return ConfigurationError(
            f"the expression {self._text!r} doesn't fit {where}",
            expected=expected,
            found=found,
            remedy="cast(... as text), as bigint or as double makes one of the other",
        )


_NOTHING: Final = pa.scalar(None, _TEXT)


def _kind_of(kind: pa.DataType) -> str:
    if pa.types.is_null(kind):
        return "null"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    return "bytes" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "struct"


def _wide(column: Column) -> pa.Array:
    """Return a field's values in the types of expressions."""
    values = column.values
    if pa.types.is_integer(values.type):
        return values.cast(pa.int64())
    if pa.types.is_floating(values.type):
        return values.cast(pa.float64())
    if pa.types.is_null(values.type):
        kinds = {"string": _TEXT, "boolean": pa.bool_(), "float": pa.float64(), "double": pa.float64()}
        if column.schema.type.startswith("int"):
            return values.cast(pa.int64())
        return values.cast(kinds[column.schema.type]) if column.schema.type in kinds else values
    return values.cast(_TEXT) if pa.types.is_string(values.type) else values


def plain_texts(texts: pa.Array) -> pa.Array:
    """Decode JSON headers to text; the few texts with escapes are decoded one by one."""
    texts = texts.cast(_TEXT)
    quoted = pc.starts_with(texts, '"')
    inner = pc.utf8_slice_codeunits(texts, 1, -1)
    escaped = pc.and_(quoted, pc.match_substring(texts, "\\"))
    if pc.any(escaped).as_py():
        distinct = texts.dictionary_encode()
        said = [
            json.loads(one) if one is not None and one.startswith('"') else one
            for one in distinct.dictionary.to_pylist()
        ]
        return pa.array(said, _TEXT).take(distinct.indices)
    plain = pc.if_else(quoted, inner, texts)
    return pc.if_else(pc.equal(texts, "null"), _NOTHING, plain)


def _double(numbers: Any) -> Any:
    """Convert to doubles, rounding large integers."""
    return pc.cast(numbers, pa.float64(), safe=False)


def _of_one_width(one: Any, other: Any) -> tuple[Any, Any]:
    """Convert both numbers to double if one is."""
    if one.type != other.type and pa.float64() in (one.type, other.type):
        return _double(one), _double(other)
    return one, other


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda one, other: function(*_of_one_width(one, other))


def _divide(one: Any, other: Any) -> Any:
    divisor = pc.if_else(pc.equal(other, 0), pa.scalar(None, other.type), other)
    return pc.divide(_double(one), _double(divisor))


def _modulo(one: Any, other: Any) -> Any:
    """Return the remainder with the sign of the dividend, as in SQL and C."""
    divisor = pc.if_else(pc.equal(other, 0), pa.scalar(None, other.type), other)
    quotient = pc.divide(one, divisor)
    if pa.types.is_floating(quotient.type):
        quotient = pc.trunc(quotient)
    return pc.subtract(one, pc.multiply(quotient, divisor))


def _pattern(function: Callable[..., Any], **more: Any) -> Callable[[Any, Any], Any]:
    def matched(texts: Any, pattern: Any) -> Any:
        return function(texts, pattern.as_py(), **more)

    return matched


def _replace(texts: Any, old: Any, new: Any) -> Any:
    return pc.replace_substring(texts, old.as_py(), _literal(new))


def _regexp_replace(texts: Any, pattern: Any, new: Any) -> Any:
    return pc.replace_substring_regex(texts, pattern.as_py(), _literal(new))


def _literal(new: Any) -> str:
    if not isinstance(new, pa.Scalar):
        raise ConfigurationError("what is put in by replace and regexp_replace must be a literal")
    return new.as_py() or ""


def _matches(texts: Any, pattern: Any) -> Any:
    return pc.match_substring_regex(texts, rf"\A(?:{pattern.as_py()})\z")


_PLAIN: Final[Mapping[str, tuple[tuple[Kind, ...], Callable[..., Any]]]] = {
    "length": (("text",), lambda texts: pc.utf8_length(texts).cast(pa.int64())),
    "lower": (("text",), pc.utf8_lower),
    "upper": (("text",), pc.utf8_upper),
    "trim": (("text",), lambda texts: pc.utf8_trim(texts, characters=" ")),
    "starts_with": (("text", "text"), _pattern(pc.starts_with)),
    "ends_with": (("text", "text"), _pattern(pc.ends_with)),
    "contains": (("text", "text"), _pattern(pc.match_substring)),
    "like": (("text", "text"), _pattern(pc.match_like)),
    "ilike": (("text", "text"), _pattern(pc.match_like, ignore_case=True)),
    "rlike": (("text", "text"), _pattern(pc.match_substring_regex)),
    "matches": (("text", "text"), _matches),
    "replace": (("text", "text", "text"), _replace),
    "regexp_replace": (("text", "text", "text"), _regexp_replace),
    "abs": (("number",), pc.abs_checked),
    "add": (("number", "number"), _arithmetic(pc.add_checked)),
    "subtract": (("number", "number"), _arithmetic(pc.subtract_checked)),
    "multiply": (("number", "number"), _arithmetic(pc.multiply_checked)),
    "divide": (("number", "number"), _divide),
    "modulo": (("number", "number"), _arithmetic(_modulo)),
    "negate": (("number",), pc.negate_checked),
}
"""Argument types and implementation by function."""
