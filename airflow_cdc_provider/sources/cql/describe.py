"""Parse schemas from CQL text, handwritten or from ``DESCRIBE KEYSPACE ... WITH INTERNALS``.

It supports keyspaces, types, tables (with ID, cdc, clustering order, static and dropped columns), views, and
subsequent ALTER, RENAME and DROP statements. Indexes, functions, aggregates, triggers, roles and data
statements are irrelevant for reading changes and are skipped. The parser works on tokens, so quoted names,
strings and comments may contain anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from airflow_cdc_provider.exceptions import SchemaUnknown
from airflow_cdc_provider.sources.cql.schema import (
    NEVER_DROPPED,
    Column,
    CqlType,
    DroppedColumn,
    Keyspace,
    Schemas,
    TableSchema,
    define_view,
    number_columns,
    order_columns,
)
from airflow_cdc_provider.sources.cql.types import freeze, parse_type

_TOKEN = re.compile(
    r"""
    (?P<skip>\s+ | --[^\n]* | //[^\n]* | /\*.*?\*/)
  | (?P<quoted>"(?:[^"]|"")*")
  | (?P<string>'(?:[^']|'')*' | \$\$.*?\$\$)
  | (?P<uuid>[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})
  | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_]))
  | (?P<word>[A-Za-z0-9_]+)
  | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def parse_cql(text: str) -> Schemas:
    """Parse the statements of a CQL file, in order.

    Args:
        text: The file's text. Tables without an ID in it have an empty one.

    Returns:
        The schemas after the last statement.

    Raises:
        SchemaUnknown: A statement can't be parsed; the message contains its start.

    Example:
        >>> parse_cql("CREATE TABLE k.t (a int PRIMARY KEY, b text) WITH cdc = true;").tables["k.t"].cdc
        True
    """
    reader = _Reader()
    for statement in _statements(text):
        reader.run(statement)
    tables = {name: number_columns(table) for name, table in sorted(reader.tables.items())}
    return Schemas(reader.keyspaces, reader.types, tables)


class _Statement:
    """Tokens of one statement and a position in them."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.position = 0

    def error(self, expected: str) -> SchemaUnknown:
        start = " ".join(text for _, text in self.tokens[:6])
        found = " ".join(text for _, text in self.tokens[self.position : self.position + 4]) or "its end"
        return SchemaUnknown(
            f"can't parse the statement that starts with {start!r}",
            expected=expected,
            found=repr(found),
            remedy="provide the output of DESCRIBE ... WITH INTERNALS",
        )

    def ahead(self, *words: str) -> bool:
        """Return whether these words or signs come next."""
        following = self.tokens[self.position : self.position + len(words)]
        return len(following) == len(words) and all(
            kind in ("word", "sign") and text.lower() == word
            for (kind, text), word in zip(following, words, strict=True)
        )

    def accept(self, *words: str) -> bool:
        found = self.ahead(*words)
        if found:
            self.position += len(words)
        return found

    def need(self, *words: str) -> None:
        if not self.accept(*words):
            raise self.error(" ".join(words))

    def take(self, expected: str = "more") -> tuple[str, str]:
        if self.position >= len(self.tokens):
            raise self.error(expected)
        self.position += 1
        return self.tokens[self.position - 1]

    @property
    def ended(self) -> bool:
        return self.position >= len(self.tokens)

    def name(self) -> str:
        kind, text = self.take("a name")
        if kind == "quoted":
            return text[1:-1].replace('""', '"')
        if kind in ("word", "number"):
            return text.lower()
        self.position -= 1
        raise self.error("a name")

    def names(self) -> list[str]:
        """Take names in parentheses."""
        self.need("(")
        names = [self.name()]
        while self.accept(","):
            names.append(self.name())
        self.need(")")
        return names

    def type_text(self) -> str:
        """Take the tokens of one type, up to its last bracket."""
        parts, depth = [], 0
        while True:
            kind, text = self.take("a type")
            parts.append(text)
            depth += (text == "<") - (text == ">") if kind == "sign" else 0
            if depth == 0 and not (self.ahead("<") or self.ahead(".") or text == "."):
                return " ".join(parts)

    def skip_to(self, *signs: str) -> None:
        """Skip to the next of these signs outside of parentheses, or to the end."""
        depth = 0
        while not self.ended:
            kind, text = self.tokens[self.position]
            if kind == "sign":
                if depth == 0 and text in signs:
                    return
                depth += (text in "([{") - (text in ")]}")
            self.position += 1


def _statements(text: str) -> Iterator[_Statement]:
    tokens: list[tuple[str, str]] = []
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind == "sign" and match.group() == ";":
            if tokens:
                yield _Statement(tokens)
            tokens = []
        elif kind != "skip":
            tokens.append((kind, match.group()))
    if tokens:
        yield _Statement(tokens)


class _Reader:
    """The schema after the statements that were run so far."""

    def __init__(self) -> None:
        self.keyspaces: dict[str, Keyspace] = {}
        self.types: dict[str, CqlType] = {}
        self.tables: dict[str, TableSchema] = {}
        self.keyspace = ""

    def run(self, s: _Statement) -> None:
        if s.accept("use"):
            self.keyspace = s.name()
        elif s.accept("create", "keyspace"):
            self.create_keyspace(s)
        elif s.accept("create", "type"):
            self.create_type(s)
        elif s.accept("create", "table") or s.accept("create", "columnfamily"):
            self.create_table(s)
        elif s.accept("create", "materialized", "view"):
            self.create_view(s)
        elif s.accept("alter", "table") or s.accept("alter", "columnfamily"):
            self.alter_table(s)
        elif s.accept("alter", "type"):
            self.alter_type(s)
        elif s.accept("drop"):
            self.drop(s)

    def full_name(self, s: _Statement) -> str:
        first = s.name()
        if s.accept("."):
            return f"{first}.{s.name()}"
        if not self.keyspace:
            raise s.error("a name with its keyspace, or USE before")
        return f"{self.keyspace}.{first}"

    def lookup(self, keyspace: str) -> Callable[[str], CqlType]:
        def find(name: str) -> CqlType:
            full = name if "." in name else f"{keyspace}.{name}"
            if full not in self.types:
                raise SchemaUnknown(f"type {full} doesn't exist", expected="a CREATE TYPE before its use")
            return self.types[full]

        return find

    def create_keyspace(self, s: _Statement) -> None:
        s.accept("if", "not", "exists")
        name = s.name()
        durable = True
        replication: dict[str, str] = {}
        while not s.ended:
            if s.accept("durable_writes", "="):
                durable = s.name() == "true"
            elif s.accept("replication", "=", "{"):
                replication = _string_map(s)
            else:
                s.take()
        self.keyspaces[name] = Keyspace(name, durable, replication)

    def create_type(self, s: _Statement) -> None:
        s.accept("if", "not", "exists")
        full = self.full_name(s)
        keyspace = full.partition(".")[0]
        fields: list[str] = []
        types: list[CqlType] = []
        s.need("(")
        while True:
            fields.append(s.name())
            types.append(freeze(parse_type(s.type_text(), self.lookup(keyspace))))
            if not s.accept(","):
                break
        s.need(")")
        self.types[full] = CqlType("udt", tuple(types), fields=tuple(fields), udt=full)

    def create_table(self, s: _Statement) -> None:
        s.accept("if", "not", "exists")
        full = self.full_name(s)
        keyspace, _, name = full.partition(".")
        columns: dict[str, Column] = {}
        partition: list[str] = []
        clustering: list[str] = []
        s.need("(")
        while True:
            if s.accept("primary", "key"):
                partition, clustering = _primary_key(s)
            else:
                column = self.column(s, keyspace)
                columns[column.name] = column
                if s.accept("primary", "key"):
                    partition = [column.name]
                s.skip_to(",", ")")
            if not s.accept(","):
                break
        s.need(")")
        missing = [n for n in (*partition, *clustering) if n not in columns]
        if missing or not partition:
            raise s.error(f"columns of the primary key: {', '.join(missing) or 'none is given'}")
        table = TableSchema(keyspace, name, "", _with_keys(columns, partition, clustering))
        self.tables[full] = _completed(self.with_options(s, table))

    def column(self, s: _Statement, keyspace: str) -> Column:
        name = s.name()
        cql_type = parse_type(s.type_text(), self.lookup(keyspace))
        return Column(name, "static" if s.accept("static") else "regular", -1, cql_type)

    def with_options(self, s: _Statement, table: TableSchema) -> TableSchema:
        """Parse the relevant options of ``WITH ... AND ...``."""
        if not s.accept("with"):
            return table
        while not s.ended:
            if s.accept("clustering", "order", "by"):
                descending = _clustering_order(s)
                columns = tuple(
                    replace(c, descending=c.name in descending) if c.kind == "clustering" else c
                    for c in table.columns
                )
                table = replace(table, columns=columns)
            elif s.accept("id", "="):
                table = replace(table, id=s.take("a table id")[1].strip("'").replace("-", "").lower())
            elif s.accept("compact", "storage"):
                if table.clustering and not table.regular:
                    hidden = DroppedColumn("value", "regular", CqlType("empty"), NEVER_DROPPED)
                    table = replace(table, dropped={"value": hidden})
            elif s.accept("cdc", "="):
                table = replace(table, cdc=s.take("true or false")[1].strip("'").lower() == "true")
            else:
                s.take()
                continue
            s.accept("and")
        return table

    def create_view(self, s: _Statement) -> None:
        s.accept("if", "not", "exists")
        full = self.full_name(s)
        s.need("as", "select")
        selected: list[str] | None = None
        if not s.accept("*"):
            selected = [s.name()]
            while s.accept(","):
                selected.append(s.name())
        s.need("from")
        base = self.table(s)
        while not s.accept("primary", "key"):
            s.take("PRIMARY KEY")
        partition, clustering = _primary_key(s)
        columns = {
            c.name: replace(c, kind="regular", position=-1, descending=False)
            for c in base.columns
            if c.kind != "static" and (selected is None or c.name in {*selected, *partition, *clustering})
        }
        keyspace, _, name = full.partition(".")
        view = _completed(
            TableSchema(keyspace, name, "", _with_keys(columns, partition, clustering), view=True)
        )
        keys = ([c.name for c in base.partition_key], [c.name for c in base.clustering])
        view = replace(view, definition=define_view(base.full_name, *keys, view.columns))
        self.tables[full] = _completed(self.with_options(s, view))

    def table(self, s: _Statement) -> TableSchema:
        full = self.full_name(s)
        if full not in self.tables:
            raise SchemaUnknown(f"table {full} doesn't exist", expected="a CREATE TABLE before its use")
        return self.tables[full]

    def alter_table(self, s: _Statement) -> None:
        s.accept("if", "exists")
        table = self.table(s)
        columns = {c.name: c for c in table.columns}
        if s.accept("add"):
            s.accept("if", "not", "exists")
            bracket = s.accept("(")
            while True:
                column = self.column(s, table.keyspace)
                columns[column.name] = column
                s.skip_to(",", ")")
                if not s.accept(","):
                    break
            if bracket:
                s.need(")")
        elif s.accept("drop"):
            table = _drop_columns(s, table, columns)
        elif s.accept("rename"):
            while not s.ended:
                old = s.name()
                s.need("to")
                new = s.name()
                if old not in columns:
                    raise s.error(f"a column of {table.full_name}")
                columns = {(new if n == old else n): c for n, c in columns.items()}
                columns[new] = replace(columns[new], name=new)
                s.accept("and")
        else:
            table = self.with_options(s, table)
            columns = {c.name: c for c in table.columns}
        self.tables[table.full_name] = _completed(replace(table, columns=tuple(columns.values())))

    def alter_type(self, s: _Statement) -> None:
        s.accept("if", "exists")
        full = self.full_name(s)
        udt = self.lookup("")(full)
        if s.accept("add"):
            s.accept("if", "not", "exists")
            name = s.name()
            added = freeze(parse_type(s.type_text(), self.lookup(full.partition(".")[0])))
            udt = replace(udt, fields=(*udt.fields, name), parameters=(*udt.parameters, added))
        elif s.accept("rename"):
            while not s.ended:
                old = s.name()
                s.need("to")
                new = s.name()
                udt = replace(udt, fields=tuple(new if f == old else f for f in udt.fields))
                s.accept("and")
        self.types = {n: _replace_udt(t, udt) for n, t in self.types.items()}
        self.tables = {n: _with_udt(t, udt) for n, t in self.tables.items()}

    def drop(self, s: _Statement) -> None:
        if s.accept("table") or s.accept("materialized", "view"):
            s.accept("if", "exists")
            self.tables.pop(self.full_name(s), None)
        elif s.accept("type"):
            s.accept("if", "exists")
            self.types.pop(self.full_name(s), None)
        elif s.accept("keyspace"):
            s.accept("if", "exists")
            name = s.name()
            self.keyspaces.pop(name, None)
            self.tables = {n: t for n, t in self.tables.items() if t.keyspace != name}
            self.types = {n: t for n, t in self.types.items() if not n.startswith(f"{name}.")}


def _primary_key(s: _Statement) -> tuple[list[str], list[str]]:
    s.need("(")
    partition = s.names() if s.ahead("(") else [s.name()]
    clustering = []
    while s.accept(","):
        clustering.append(s.name())
    s.need(")")
    return partition, clustering


def _with_keys(columns: dict[str, Column], partition: list[str], clustering: list[str]) -> tuple[Column, ...]:
    keyed = dict(columns)
    for position, name in enumerate(partition):
        keyed[name] = replace(keyed[name], kind="partition_key", position=position)
    for position, name in enumerate(clustering):
        keyed[name] = replace(keyed[name], kind="clustering", position=position)
    return tuple(keyed.values())


def _clustering_order(s: _Statement) -> set[str]:
    descending = set()
    s.need("(")
    while True:
        name = s.name()
        if s.accept("desc"):
            descending.add(name)
        else:
            s.accept("asc")
        if not s.accept(","):
            break
    s.need(")")
    return descending


def _drop_columns(s: _Statement, table: TableSchema, columns: dict[str, Column]) -> TableSchema:
    s.accept("if", "exists")
    names = s.names() if s.ahead("(") else [s.name()]
    while s.accept(","):
        names.append(s.name())
    dropped_at = 0
    if s.accept("using", "timestamp"):
        dropped_at = int(s.take("microseconds")[1])
    dropped = dict(table.dropped)
    for name in names:
        column = columns.pop(name, None)
        if column is None:
            raise s.error(f"a column of {table.full_name}")
        dropped[name] = DroppedColumn(name, column.kind, column.type, dropped_at)
    return replace(table, dropped=dropped)


def _completed(table: TableSchema) -> TableSchema:
    counter = any(c.type.name == "counter" for c in table.columns)
    return replace(table, columns=order_columns(table.columns), counter=counter)


def _string_map(s: _Statement) -> dict[str, str]:
    """Take the strings of a map up to its closing brace."""
    values: dict[str, str] = {}
    while not s.accept("}"):
        key = s.take("}")[1].strip("'")
        s.need(":")
        values[key] = s.take("a value")[1].strip("'")
        s.accept(",")
    return values


def _replace_udt(cql_type: CqlType, udt: CqlType) -> CqlType:
    if cql_type.udt == udt.udt:
        return replace(udt, frozen=cql_type.frozen)
    return replace(cql_type, parameters=tuple(_replace_udt(p, udt) for p in cql_type.parameters))


def _with_udt(table: TableSchema, udt: CqlType) -> TableSchema:
    return replace(table, columns=tuple(replace(c, type=_replace_udt(c.type, udt)) for c in table.columns))
