"""Parse CQL types from text (CQL, or a Java class name) to :class:`CqlType`, and format them.

Nested types are always frozen in effect, so the parser marks them as frozen; different spellings of the same
type (``list<frozen<set<int>>>``, a Java class) yield equal types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from airflow_cdc_provider.exceptions import SchemaUnknown
from airflow_cdc_provider.sources.cql.schema import CqlType

FIXED_LENGTHS: Final = {
    "boolean": 1,
    "int": 4,
    "float": 4,
    "bigint": 8,
    "double": 8,
    "timestamp": 8,
    "uuid": 16,
    "timeuuid": 16,
    "empty": 0,
}
"""Types whose values have no length prefix in simple cells and clusterings
(``AbstractType.valueLengthIfFixed``). All others have one, even those of constant size, such as smallint and
date."""

_SCALARS = """
    ascii bigint blob boolean counter date decimal double duration empty float inet int smallint text time
    timestamp timeuuid tinyint uuid varint
"""
SCALARS: Final = frozenset(_SCALARS.split())
_FREEZABLE: Final = frozenset({"list", "set", "map", "udt"})
_ARITY: Final = {"list": 1, "set": 1, "map": 2}

LEXICAL_UUID: Final = "org.apache.cassandra.db.marshal.LexicalUUIDType"
_MARSHAL: Final = "org.apache.cassandra.db.marshal."
_JAVA_SCALARS: Final = {
    "AsciiType": "ascii",
    "LongType": "bigint",
    "BytesType": "blob",
    "BooleanType": "boolean",
    "CounterColumnType": "counter",
    "SimpleDateType": "date",
    "DecimalType": "decimal",
    "DoubleType": "double",
    "DurationType": "duration",
    "EmptyType": "empty",
    "FloatType": "float",
    "InetAddressType": "inet",
    "Int32Type": "int",
    "ShortType": "smallint",
    "UTF8Type": "text",
    "TimeType": "time",
    "TimestampType": "timestamp",
    "DateType": "timestamp",
    "TimeUUIDType": "timeuuid",
    "ByteType": "tinyint",
    "UUIDType": "uuid",
    "IntegerType": "varint",
}
_JAVA_NESTED: Final = {"ListType": "list", "SetType": "set", "MapType": "map", "TupleType": "tuple"}

UdtLookup = Callable[[str], CqlType]
"""Returns a user-defined type by its name, with or without ``keyspace.``; raises SchemaUnknown."""


def no_udts(name: str) -> CqlType:
    """Reject every user-defined type: the lookup of schemas without any."""
    raise SchemaUnknown(f"type {name} doesn't exist", expected="a CQL type or a type created before")


def parse_type(text: str, udt: UdtLookup = no_udts) -> CqlType:
    """Parse a type in the format of CQL and ``system_schema``.

    Args:
        text: For example ``map<text, frozen<list<int>>>``, ``"My Type"``, ``vector<float, 3>``, or a quoted
            Java class for a custom type.
        udt: Returns user-defined types by name.

    Returns:
        The type.

    Raises:
        SchemaUnknown: The text is not a type, or contains an unknown one.
    """
    parser = _CqlParser(text, udt)
    parsed = parser.type()
    parser.end()
    return parsed


def parse_java_type(text: str) -> CqlType:
    """Parse a Java class name with its parameters, such as ``org...ReversedType(org...Int32Type)``.

    A class that is not one of Cassandra's becomes a ``custom`` type.

    Args:
        text: The class name.

    Returns:
        The type.

    Raises:
        SchemaUnknown: The text is not well-formed.
    """
    parser = _JavaParser(text)
    parsed = parser.type()
    parser.end()
    return parsed


def freeze(cql_type: CqlType) -> CqlType:
    """Return the type as nested in another type."""
    return replace(cql_type, frozen=True) if cql_type.name in _FREEZABLE else cql_type


def fixed_length(cql_type: CqlType) -> int:
    """Return the length of values without a length prefix, or -1 for values with one."""
    if cql_type.name == "vector":
        element = fixed_length(cql_type.parameters[0])
        return element * cql_type.dimensions if element >= 0 else -1
    if cql_type.udt == LEXICAL_UUID:
        return 16
    return FIXED_LENGTHS.get(cql_type.name, -1)


def to_cql(cql_type: CqlType) -> str:
    """Format a type as CQL; user-defined types by name without keyspace."""
    inside = ", ".join(to_cql(p) for p in cql_type.parameters)
    match cql_type.name:
        case "custom":
            return f"'{cql_type.udt}'"
        case "udt":
            text = quote_name(cql_type.udt.partition(".")[2])
        case "vector":
            return f"vector<{inside}, {cql_type.dimensions}>"
        case name if cql_type.parameters:
            text = f"{name}<{inside}>"
        case name:
            return name
    return f"frozen<{text}>" if cql_type.frozen or cql_type.name == "tuple" else text


def quote_name(name: str) -> str:
    """Format an identifier, in quotes unless it is plain lower case."""
    if re.fullmatch(r"[a-z][a-z0-9_]*", name) and name not in RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def cql_name(full_name: str) -> str:
    """Format ``keyspace.table`` as CQL, each part quoted if necessary."""
    return ".".join(map(quote_name, full_name.split(".", 1)))


_RESERVED = """
    add allow alter and apply asc authorize batch begin by columnfamily create default delete desc
    describe drop entries execute false from full grant if in index infinity insert into is keyspace limit
    materialized mbean mbeans modify nan norecursive not null of on or order primary rename replace revoke
    schema select set table to token true truncate unlogged unset update use using view where with
"""
RESERVED: Final = frozenset(_RESERVED.split())
"""Words that require quotes as names."""


_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_DEEPEST: Final = 64
"""Maximum nesting of a type: the functions of types are recursive."""


class _Parser:
    token = re.compile("")

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        position = depth = 0
        while position < len(text):
            match = self.token.match(text, position)
            if match is None:
                raise self.error()
            if match.lastgroup != "space":
                self.tokens.append(match.group())
                depth += (match.group() in ("<", "(")) - (match.group() in (">", ")"))
            if depth > _DEEPEST:
                raise self.error()
            position = match.end()
        self.position = 0

    def error(self) -> SchemaUnknown:
        return SchemaUnknown(f"{self.text[:1000]!r} is not a supported type")

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise self.error()
        self.position += 1
        return token

    def number(self) -> int:
        token = self.take()
        if not _NUMBER.fullmatch(token):
            raise self.error()
        return int(token)

    def name(self) -> str:
        try:
            return bytes.fromhex(self.take()).decode()
        except ValueError:
            raise self.error() from None

    def end(self) -> None:
        if self.peek():
            raise self.error()


class _CqlParser(_Parser):
    token = re.compile(r"""(?P<space>\s+)|"(?:[^"]|"")*"|'(?:[^']|'')*'|[A-Za-z0-9_]+|[<>,.]""")

    def __init__(self, text: str, udt: UdtLookup) -> None:
        super().__init__(text)
        self.udt = udt

    def type(self) -> CqlType:
        token = self.take()
        if token.startswith("'"):
            return parse_java_type(token[1:-1].replace("''", "'"))
        if token in ("<", ">", ",", "."):
            raise self.error()
        if token.startswith('"') or self.peek() == ".":
            return self.udt(self.qualified(token))
        name = token.lower()
        if name == "varchar":
            name = "text"
        if self.peek() == "<":
            return self.parameterized(name)
        if name in SCALARS:
            return CqlType(name)
        return self.udt(name)

    def qualified(self, token: str) -> str:
        name = _unquote(token)
        if self.peek() == ".":
            self.take()
            name = f"{name}.{_unquote(self.take())}"
        return name

    def parameterized(self, name: str) -> CqlType:
        self.take("<")
        inside = [self.type()]
        dimensions = 0
        while self.peek() == ",":
            self.take()
            if name == "vector":
                dimensions = self.number()
            else:
                inside.append(self.type())
        self.take(">")
        return _compose(name, inside, dimensions, self.error)


class _JavaParser(_Parser):
    token = re.compile(r"(?P<space>\s+)|[A-Za-z0-9_.$-]+|=>|[(),:]")

    def type(self) -> CqlType:
        word = self.take()
        short = word.removeprefix(_MARSHAL)
        if short in _JAVA_SCALARS:
            return CqlType(_JAVA_SCALARS[short])
        if short == "UserType":
            return self.user_type()
        if self.peek() == "(" and short in {*_JAVA_NESTED, "FrozenType", "ReversedType", "VectorType"}:
            return self.nested(short)
        return CqlType("custom", udt=word + self.raw_parameters())

    def nested(self, short: str) -> CqlType:
        self.take("(")
        inside = [self.type()]
        dimensions = 0
        while self.peek() == ",":
            self.take()
            if short == "VectorType":
                dimensions = self.number()
            else:
                inside.append(self.type())
        self.take(")")
        if short == "ReversedType":
            return inside[0]
        name = {"FrozenType": "frozen", "VectorType": "vector"}.get(short) or _JAVA_NESTED[short]
        return _compose(name, inside, dimensions, self.error)

    def user_type(self) -> CqlType:
        self.take("(")
        keyspace = self.take()
        self.take(",")
        name = self.name()
        fields: list[str] = []
        types: list[CqlType] = []
        while self.peek() == ",":
            self.take()
            fields.append(self.name())
            self.take(":")
            types.append(freeze(self.type()))
        self.take(")")
        return CqlType("udt", tuple(types), fields=tuple(fields), udt=f"{keyspace}.{name}")

    def raw_parameters(self) -> str:
        """Return the parenthesized text after a third-party class, verbatim."""
        if self.peek() != "(":
            return ""
        words, depth = [], 0
        while True:
            word = self.take()
            words.append(word)
            depth += (word == "(") - (word == ")")
            if depth == 0:
                return "".join(words)


def _compose(
    name: str, inside: Sequence[CqlType], dimensions: int, error: Callable[[], SchemaUnknown]
) -> CqlType:
    if name == "frozen" and len(inside) == 1:
        return freeze(inside[0])
    parameters = tuple(freeze(t) for t in inside)
    if name == "vector" and len(inside) == 1 and dimensions > 0:
        return CqlType("vector", parameters, dimensions=dimensions)
    if name == "tuple" or len(inside) == _ARITY.get(name):
        return CqlType(name, parameters)
    raise error()


def _unquote(token: str) -> str:
    return token[1:-1].replace('""', '"') if token.startswith('"') else token.lower()
