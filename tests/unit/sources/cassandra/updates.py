"""Tables and random updates of them, for property tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hypothesis import strategies as st

from airflow_cdc_provider.sources.cql.schema import Column, TableSchema, number_columns
from airflow_cdc_provider.sources.cql.types import fixed_length, parse_type
from tests.oracles.cassandra_read_path import Cell, Liveness, Row
from tests.unit.sources.cassandra.commit_logs import (
    EPOCH_S,
    EPOCH_US,
    Deletion,
    Marker,
    Native,
    Stats,
    join_clustering,
)

KIND_NAMES: Final = {"p": "partition_key", "c": "clustering", "s": "static", "r": "regular"}


def table(name: str, columns: str, number: int, *, reverse_ids: bool = False) -> TableSchema:
    """Make a table of ``kind name type`` lines; a clustering column may end in DESC."""
    built = []
    next_index: dict[str, int] = {}
    for line in columns.strip().splitlines():
        kind, column, kind_of_type = line.split(maxsplit=2)
        descending = kind_of_type.endswith(" DESC")
        place = next_index[kind] = next_index.get(kind, -1) + 1
        built.append(
            Column(
                column,
                KIND_NAMES[kind],  # type: ignore[arg-type]  # the four kinds
                place if kind in "pc" else -1,
                parse_type(kind_of_type.removesuffix(" DESC")),
                descending,
            )
        )
    schema = TableSchema("ks", name, f"{number:032x}", tuple(built), cdc=True)
    names = sorted((c.name for c in built if c.kind in ("static", "regular")), reverse=reverse_ids)
    return number_columns(schema, {column: i for i, column in enumerate(names, start=1)})


PLAIN: Final = table("plain", "p id int\nr a int\nr b text\nr c bigint", 0x11)
RICH: Final = table(
    "rich",
    "p id text\nc when timestamp DESC\nc name text\ns s int\ns tags set<text>\n"
    "r a int\nr b text\nr c smallint\nr l list<int>\nr m map<int, text>\nr u frozen<list<int>>\n"
    "r v vector<float, 2>",
    0x12,
)
SHUFFLED: Final = table(
    "shuffled",
    "p id int\nc k int\nr a int\nr b set<int>\nr c blob\nr d map<text, int>\nr e uuid",
    0x13,
    reverse_ids=True,
)
WIDE: Final = table("wide", "p id int\nc k int\n" + "\n".join(f"r c{i:03} int" for i in range(90)), 0x14)
TABLES: Final = (PLAIN, RICH, SHUFFLED, WIDE)

times = st.one_of(st.integers(EPOCH_US, EPOCH_US + (1 << 50)), st.integers(-(1 << 63) + 1, (1 << 63) - 1))


def seconds(version: int) -> st.SearchStrategy[int]:
    """Deletion times that a version can hold."""
    return st.one_of(
        st.integers(EPOCH_S, EPOCH_S + (1 << 28)), st.integers(0, 0x7FFFFFFF if version < 8 else 0xFFFFFFFD)
    )


def deletions(version: int) -> st.SearchStrategy[Deletion]:
    return st.tuples(times, seconds(version))


def value_of(column: Column, *, bare: bool) -> st.SearchStrategy[bytes]:
    """Bytes of the right length; empty ones are there too."""
    length = fixed_length(column.type) if bare else -1
    sized = st.binary(min_size=length, max_size=length) if length > 0 else st.binary(max_size=12)
    return st.one_of(st.just(b""), sized)


@st.composite
def cells(draw: st.DrawFn, column: Column, version: int, path: Native) -> Cell:
    """One cell of a column."""
    time = draw(times)
    kind = draw(st.sampled_from(("plain", "tombstone", "expiring")))
    if kind == "tombstone":
        return Cell(column.id, time, path=path, tombstone=True, end=draw(seconds(version)))
    value = draw(value_of(column, bare=path is None))
    if kind == "plain":
        return Cell(column.id, time, value, path)
    ttl = draw(st.integers(1, 20 * 365 * 86400))
    end = draw(st.integers(ttl, 0x7FFFFFFE if version < 8 else 0xFFFFFFFD))
    return Cell(column.id, time, value, path, expiring=True, ttl=ttl, end=end)


@st.composite
def rows(draw: st.DrawFn, columns: Sequence[Column], version: int, clustering: bytes, *, static: bool) -> Row:
    """A row with some of the columns."""
    liveness = None
    if not static and draw(st.booleans()):
        liveness = Liveness(draw(times))
        if draw(st.booleans()):
            ttl = draw(st.integers(1, 1000))
            liveness = Liveness(liveness.time, ttl, draw(st.integers(ttl, 0x7FFFFFFE)))
    found: list[Cell] = []
    for column in columns:
        if draw(st.integers(0, 2)) == 0:
            continue
        if not column.type.multi_cell:
            cell = draw(cells(column, version, None))
            if liveness is not None and draw(st.booleans()):
                cell = replace(cell, time=liveness.time)
                if cell.expiring and liveness.ttl:
                    cell = replace(cell, ttl=liveness.ttl, end=liveness.expires)
            found.append(cell)
            continue
        if draw(st.booleans()):
            time, end = draw(deletions(version))
            found.append(Cell(column.id, time, end=end, complex_deletion=True))
        paths = draw(st.lists(st.binary(max_size=6), max_size=5, unique=True))
        found += [draw(cells(column, version, path)) for path in paths]
    deletion = draw(st.none() | deletions(version)) if not static else None
    return Row(liveness, deletion, clustering, tuple(found))


@dataclass(frozen=True)
class DrawnUpdate:
    """An update to write, and what must come out."""

    table: TableSchema
    key: bytes
    items: tuple[Row | Marker, ...]
    static: Row | None
    partition_deletion: Deletion | None
    stats: Stats


@st.composite
def clusterings(draw: st.DrawFn, schema: TableSchema) -> tuple[Native, ...]:
    return tuple(draw(value_of(column, bare=True)) for column in schema.clustering)


@st.composite
def updates(draw: st.DrawFn, version: int, schemas: Sequence[TableSchema] = TABLES) -> DrawnUpdate:
    """An update of one of the tables."""
    schema = draw(st.sampled_from(schemas))
    count = draw(st.integers(0, 3)) if schema.clustering else draw(st.integers(0, 1))
    items: list[Row | Marker] = []
    for _ in range(count):
        native = join_clustering(draw(clusterings(schema)))
        items.append(draw(rows(schema.regular, version, native, static=False)))
    if len(schema.clustering) > 0 and draw(st.booleans()):
        items += draw(range_markers(schema, version))
    static = None
    if len(schema.static) > 0 and draw(st.booleans()):
        static = draw(rows(schema.static, version, b"", static=True))
    stats = Stats(
        draw(st.integers(EPOCH_US, EPOCH_US + (1 << 50))),
        draw(st.integers(EPOCH_S, 0x7FFFFFFF)),
        draw(st.integers(0, 1)),
    )
    return DrawnUpdate(
        schema,
        draw(st.binary(max_size=20)),
        tuple(items),
        static,
        draw(st.none() | deletions(version)),
        stats,
    )


@st.composite
def prefixes(draw: st.DrawFn, schema: TableSchema, least: int) -> tuple[Native, ...]:
    return draw(clusterings(schema))[: draw(st.integers(least, len(schema.clustering)))]


@st.composite
def range_markers(draw: st.DrawFn, schema: TableSchema, version: int) -> list[Marker]:
    """An opening, perhaps some boundaries, and a closing marker; their positions are not ordered."""
    deletion = draw(deletions(version))
    exclusive = draw(st.booleans())
    found = [Marker(7 if exclusive else 1, draw(prefixes(schema, 1 if exclusive else 0)), opens=deletion)]
    for _ in range(draw(st.integers(0, 2))):
        following = draw(deletions(version))
        found.append(
            Marker(draw(st.sampled_from((2, 5))), draw(prefixes(schema, 1)), closes=deletion, opens=following)
        )
        deletion = following
    inclusive = draw(st.booleans())
    found.append(
        Marker(6 if inclusive else 0, draw(prefixes(schema, 0 if inclusive else 1)), closes=deletion)
    )
    return found


def sorted_cells(row: Row) -> Row:
    """The row with its cells in the order of a cell row."""
    return replace(row, cells=tuple(sorted(row.cells, key=lambda cell: cell.place)))
