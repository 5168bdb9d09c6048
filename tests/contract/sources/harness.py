"""What the suite needs of a source, a :class:`SourceUnderTest`; and how jobs drive sources.

A table under test has the columns ``id`` (its key), ``n`` (a number) and ``note`` (a text).
"""

from __future__ import annotations

import json
import pickle
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, DATA_KINDS, QUARANTINE, SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.lake.reconcile import reconcile_cells, reconcile_patched
from airflow_cdc_provider.sources.contract import Codec, Offset, Plan, ReadLimit, ReadMetrics, Source
from airflow_cdc_provider.sources.registry import source_plugin

BROKEN = "broken-change"
"""Note of the change that :meth:`SourceUnderTest.write_broken` breaks."""

Rows = dict[int, tuple[int, str]]
"""A table's rows: ``n`` and ``note`` by ``id``."""

Sent = TypeVar("Sent")


@dataclass(frozen=True)
class Put:
    """Inserts a row, or updates it."""

    id: int
    n: int
    note: str = "plain"


@dataclass(frozen=True)
class Delete:
    """Deletes a row."""

    id: int


Write = Put | Delete


class SourceUnderTest(ABC):
    """An implementation of the contract with its database, for the whole suite.

    Attributes:
        type: Value of ``source.type`` in declarations.
        limitations: What the source can't do, and why: ``snapshot`` and ``strict``, which it then must
            refuse; ``head``: a batch may end after the head that it was given.
        indivisible: The most changes that a batch may have beyond its limit, since the source can't split
            them. The suite settles writes in groups of :data:`GROUP`.
        small_batches: Options that the limits of batches need.
        place_of_broken: Pattern of where :meth:`write_broken` put the change, as errors say it.

    Args:
        fixture: Returns a fixture of :mod:`tests.conftest` by name.
    """

    type: ClassVar[str]
    limitations: ClassVar[Mapping[str, str]] = {}
    indivisible: ClassVar[int] = 0
    small_batches: ClassVar[Mapping[str, Any]] = {}
    place_of_broken: ClassVar[str] = ""

    def __init__(self, fixture: Callable[[str], Any]) -> None:
        self.fixture = fixture
        self.database = f"{self.type[:3]}{random.randrange(10**9)}"
        self._rows: dict[str, Rows] = {}
        self.set_up()

    # The database.

    @abstractmethod
    def set_up(self) -> None:
        """Prepare the server for tables of this suite, apart from those of other tests."""

    def tear_down(self) -> None:  # noqa: B027 - a server without this suite's data needs none
        """Remove what the suite made."""

    @abstractmethod
    def create(self, name: str) -> str:
        """Create an empty table that can be captured and return its name as in :meth:`.Source.tables`."""

    @abstractmethod
    def apply(self, table: str, writes: Sequence[Write]) -> None:
        """Commit writes, each by itself, in this order."""

    def settle(self) -> None:  # noqa: B027 - most sources see a write at once
        """Make all writes so far visible to :meth:`.Source.head`."""

    @abstractmethod
    def lose(self, table: str) -> Offset:
        """Write changes, lose some before they are captured, and return the offset that they came after."""

    @abstractmethod
    def write_broken(self, table: str) -> None:
        """Write a change of row 2 that the source can't read, then row 3, and settle both."""

    def damage(self, parts: Sequence[Any]) -> Sequence[Any]:
        """Return the parts of a plan as :meth:`write_broken` wants them read: the same, or with broken bytes.

        Only for a source whose database accepts no broken change, and whose parts hold the changes.
        """
        return parts

    # The declaration.

    def options(self, table: str) -> Mapping[str, Any]:
        """Return the declaration's options of the source."""
        del table
        return {}

    @abstractmethod
    def connection(self) -> Mapping[str, Any]:
        """Return the values of the Airflow connection."""

    # What the suite calls.

    def write(self, table: str, *writes: Write) -> None:
        """Commit writes and keep in mind the rows that result."""
        self.apply(table, writes)
        rows = self._rows.setdefault(table, {})
        for write in writes:
            if isinstance(write, Put):
                rows[write.id] = (write.n, write.note)
            else:
                rows.pop(write.id, None)

    def rows(self, table: str) -> Rows:
        """Return the rows that the table has now."""
        return dict(self._rows.get(table, {}))

    @contextmanager
    def source(self, table: str, **options: Any) -> Iterator[Source]:
        """Build a source of one table from a declaration, as a job does, and close it."""
        declared = {"type": self.type, "conn_id": "db", **self.options(table), **options}
        connector = Connector.from_dict(
            {"name": "contract", "source": declared, "tables": [re.escape(table)]}
        )
        source = source_plugin(connector.type).source(connector, self.connection())
        try:
            yield source
        finally:
            source.close()


GROUP = 10
"""Changes that the suite settles together where it limits batches."""


@dataclass
class Captured:
    """What a connector stored.

    Args:
        offset: The offset after the last batch.
        batches: Records of each batch.
        plans: The plans.
    """

    offset: Offset | None
    batches: list[pa.Table] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    @property
    def records(self) -> pa.Table:
        """All records."""
        return pa.concat_tables([CHANGE_SCHEMA.empty_table(), *self.batches])

    def of_kind(self, *kinds: str) -> pa.Table:
        """Return the records of some kinds."""
        return self.records.filter(pc.is_in(self.records["kind"], pa.array(kinds)))

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The changes in the order in which they came, without when they were read."""
        return comparable(self.of_kind(CHANGE))


def comparable(records: pa.Table) -> list[dict[str, Any]]:
    """Return records without when this process read them, which alone differs from one read to the next."""
    found: list[dict[str, Any]] = records.drop_columns(["captured_at"]).to_pylist()
    return found


def by_position(changes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort changes by feed and position."""
    return sorted(changes, key=lambda change: (change["origin"], change["position"]))


def sent(value: Sent) -> Sent:
    """Return what an executor gets."""
    copy: Sent = pickle.loads(pickle.dumps(value))
    return copy


def stored(offset: Offset) -> Offset:
    """Return an offset as it is read back from a commit."""
    copy: Offset = json.loads(json.dumps(offset, sort_keys=True))
    return copy


def capture(
    source: Source,
    start: Offset | None,
    *,
    head: Offset | None = None,
    limit: ReadLimit | None = None,
    earlier: Captured | None = None,
    most_batches: int = 500,
    damage: Callable[[Sequence[Any]], Sequence[Any]] = lambda parts: parts,
) -> Captured:
    """Capture to the head as a job does, batch by batch, from offsets as they are stored.

    Args:
        source: The source.
        start: The stored offset.
        head: Where to stop; None for the present head.
        limit: The size of batches.
        earlier: What the connector has captured so far; it is continued.
        most_batches: After how many batches a run ends, as by a kill.
        damage: Changes the parts of plans.
    """
    captured = earlier or Captured(start)
    now = source.head()
    stop = stored(head if head is not None else now)
    schemas = list(source.schema_records())
    reader = sent(source.reader())
    for _ in range(most_batches):
        plan = source.plan(captured.offset, stop, limit or ReadLimit())
        metrics = ReadMetrics()
        read = [_table(schemas), _table(plan.records)]
        parts = damage(sent(list(plan.partitions)))
        read += [pa.Table.from_batches(reader.read([part], metrics), CHANGE_SCHEMA) for part in parts]
        source.on_batch_read(metrics)
        captured.plans.append(plan)
        captured.batches.append(pa.concat_tables(read))
        captured.offset = stored(plan.end)
        schemas = []
        source.learn(captured.of_kind(SCHEMA))
        if plan.at_head:
            break
    return captured


def begin(source: Source) -> Offset | None:
    """Return where a new connector starts, as it is stored."""
    start = source.start()
    return None if start is None else stored(start)


def _table(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([dict(record) for record in records], CHANGE_SCHEMA)


def refused(source: Source, table: str, captured: Captured) -> list[str]:
    """Return why changes are quarantined: when they were read, and when they are decoded."""
    reasons: list[str] = captured.of_kind(QUARANTINE)["reason"].to_pylist()
    codec = source.codec(table)
    for batch in _of_table(table, captured.records):
        reasons += codec.decode(batch, ()).reasons
    return reasons


def keys_of(source: Source, table: str, captured: Captured) -> list[bytes]:
    """Return the key of the row of each change, as its codec reads it."""
    codec = source.codec(table)
    changes = captured.of_kind(CHANGE).combine_chunks().to_batches()
    each = [batch.slice(number, 1) for batch in changes for number in range(batch.num_rows)]
    return [codec.decode(one, ()).contributions["key"][0].as_py() for one in each]


def merged(source: Source, table: str, records: pa.Table) -> Rows:
    """Return the mirror's rows, of all records."""
    codec = source.codec(table)
    contributions = pa.Table.from_batches(
        [codec.decode(batch, ()).contributions for batch in _of_table(table, records)]
    )
    if codec.infers_columns:
        tallies = [codec.tally(batch) for batch in contributions.combine_chunks().to_batches()]
        codec = codec.learn(pa.Table.from_batches(tallies))
    found = {}
    for batch in _reconciled(codec, contributions).combine_chunks().to_batches():
        for row in codec.project(batch).to_pylist():
            found[row["id"]] = (row["n"], row["note"])
    return found


def _reconciled(codec: Codec, contributions: pa.Table) -> pa.Table:
    if codec.model == "cell":
        return reconcile_cells(contributions, int(time.time()), codec.rules).live
    return reconcile_patched(contributions, 0, codec.patch).live


def _of_table(table: str, records: pa.Table) -> list[pa.RecordBatch]:
    own = pc.and_(pc.equal(records["source_table"], table), pc.is_in(records["kind"], pa.array(DATA_KINDS)))
    return records.filter(own).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], schema=CHANGE_SCHEMA)
    ]
