"""Random histories of a cluster: whatever nodes report, late or never, the mirror is what they hold.

A node of the model is a log of writes and truncations. What the cluster holds is, of each node, the writes
after its last truncation, all put together. Captures lag by node, batches expire, nodes join and restart,
records are lost, snapshots run while a TRUNCATE does. What merges: the package's own fences, its generations
of changes, and its merge kernel.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.fence import (
    Fence,
    FenceRecord,
    add_fences,
    newest_event,
    newest_generation,
)
from airflow_cdc_provider.sources.cassandra.decoding.decode import generations
from airflow_cdc_provider.sources.cassandra.nodes import NodeState, snapshot_position, truncation_rows
from airflow_cdc_provider.sources.cassandra.payload import Position, Truncation
from tests.chance import examples
from tests.oracles import cassandra_read_path as oracle
from tests.unit.lake.kernel_tables import Tables, shown_rows

TABLE_ID = "0" * 32
NOON_MS = 1_795_000_000_000
QUIET_MS = 700_000
"""Long enough for every node to be sure of what it has no record of."""

PLACES = pa.schema([("origin", pa.string()), ("position", pa.binary()), ("generation", pa.int64())])
KEYS = (b"k", b"l", b"m")


@dataclass(frozen=True)
class Change:
    """A write, or a copy of one, in some feed."""

    origin: str
    position: bytes
    row: oracle.Contribution

    def values(self) -> dict[str, Any]:
        return {"origin": self.origin, "position": self.position, "generation": 0}


@dataclass
class Node:
    """One node. ``log`` has its writes and the records that it keeps, in order."""

    name: str
    skew_ms: int
    segment: int
    end: int = 0
    log: list[Change | FenceRecord] = field(default_factory=list)
    held: list[Change] = field(default_factory=list)
    last: Truncation | None = None
    captured: int = 0
    answers: bool = True

    def write(self, row: oracle.Contribution) -> None:
        self.end += 10
        change = Change(self.name, Position(self.segment, self.end).pack(), row)
        self.log.append(change)
        self.held.append(change)

    def truncate(self, now_ms: int, *, logged: bool) -> None:
        self.last = Truncation(self.segment, self.end, now_ms + self.skew_ms)
        self.held.clear()
        if logged:
            record = FenceRecord(self.name, self.last.fence, self.last.truncated_at_ms * 1000)
            self.log.append(record)

    def state(self, now_ms: int) -> NodeState:
        return NodeState(self.name, now_ms + self.skew_ms, {TABLE_ID: self.last} if self.last else {})


class History:
    """A cluster, and what captures and merges it.

    Args:
        rng: Decides everything.
        connected: Whether nodes are asked over CQL; else every record is kept in the log.
        expires: Whether batches expire.
    """

    def __init__(self, rng: random.Random, *, connected: bool, expires: bool) -> None:
        self.rng = rng
        self.connected = connected
        self.expires = expires
        self.silences = connected and rng.random() < 0.5
        self.now_ms = NOON_MS
        self.time = 0
        self.nodes: list[Node] = []
        for _ in range(rng.randint(1, 3)):
            self.join()
        self.batches: dict[int, list[Change | FenceRecord]] = {}
        self.last_batch = self.merged = 0
        self.truncated_ms: dict[tuple[str, str], int] = {}
        self.fences: tuple[Fence, ...] = ()
        self.tables = Tables("cell")

    def join(self) -> None:
        """Without a connection only the id of its first segment shows that a node joined after a TRUNCATE."""
        self.now_ms += 1_000 if self.connected else 2 * 60_000
        number = len(self.nodes) + 1
        self.nodes.append(Node(f"n{number}", self.rng.randint(-400, 400), self.now_ms))

    def restart(self) -> None:
        node = self.rng.choice(self.nodes)
        node.segment, node.end = self.now_ms + node.skew_ms, 0

    def cut(self) -> None:
        """A node answers no more, or again; its segments come all the same."""
        node = self.rng.choice(self.nodes)
        node.answers = not node.answers

    def lose(self) -> None:
        """Segments are gone before they were read; a snapshot makes up for them.

        It can't while a node that joined might as well be late with a TRUNCATE (docs/design/fences.md).
        """
        newest_ms = max(node.last.truncated_at_ms if node.last else 0 for node in self.nodes)
        if self.now_ms - newest_ms < QUIET_MS and not all(node.last for node in self.nodes):
            return
        node = self.rng.choice(self.nodes)
        node.captured = len(node.log)
        self.snapshot()

    def write(self) -> None:
        self.time += 1
        cell = oracle.Cell(1, self.time, b"v%d" % self.time, tombstone=self.rng.random() < 0.2)
        if cell.tombstone:
            cell = oracle.Cell(1, self.time, b"", tombstone=True, end=5)
        row = oracle.Contribution(self.rng.choice(KEYS), 0, b"\x40a", None, 0, oracle.Row(cells=(cell,)))
        for node in self.rng.sample(self.nodes, self.rng.randint(1, len(self.nodes))):
            node.write(row)

    def truncate(self) -> None:
        """All nodes, one after the other; a snapshot or a capture may come in the middle of it."""
        # Which of two TRUNCATEs a record is of is unknown while a node is silent and its log lacks one.
        self.now_ms += 61_000 if self.silences else 3_000
        for node in self.rng.sample(self.nodes, len(self.nodes)):
            node.truncate(self.now_ms, logged=not self.connected or self.rng.random() < 0.5)
            self.now_ms += self.rng.randint(0, 200)
            if self.connected and self.rng.random() < 0.2:
                self.rng.choice([self.snapshot, self.capture, self.run])()
        self.now_ms += 3_000

    def ask(self) -> list[NodeState]:
        return [node.state(self.now_ms) for node in self.nodes]

    def snapshot(self) -> None:
        origin, place = snapshot_position(self.ask(), TABLE_ID)
        rows = [c.row for node in self.nodes for c in node.held]
        self.append([Change(origin, place + n.to_bytes(8, "big"), row) for n, row in enumerate(rows)])

    def capture(self, *, whole: bool = False) -> None:
        found: list[Change | FenceRecord] = []
        for node in self.nodes:
            end = len(node.log) if whole else self.rng.randint(node.captured, len(node.log))
            found += node.log[node.captured : end]
            node.captured = end
        if self.connected:
            asked = [node.state(self.now_ms) for node in self.nodes if whole or node.answers]
            for row in list(truncation_rows(asked, {TABLE_ID: "k.t"}, self.truncated_ms)):
                self.truncated_ms[row["origin"], "k.t"] = row["committed_at"] // 1000
                found.append(FenceRecord(row["origin"], row["position"], row["committed_at"]))
        self.append(found)

    def append(self, found: list[Change | FenceRecord]) -> None:
        self.last_batch += 1
        self.batches[self.last_batch] = found

    def merge(self) -> None:
        pending = [c for n, batch in self.batches.items() if n > self.merged for c in batch]
        before = newest_event(self.fences)
        raised_from = newest_generation(self.fences)
        self.fences = add_fences(self.fences, [r for r in pending if isinstance(r, FenceRecord)])
        if newest_event(self.fences) != before:
            pending = [c for batch in self.batches.values() for c in batch]
        generation = newest_generation(self.fences)
        if generation > raised_from:
            for row_id, row in list(self.tables.mirror.items()):
                if row["_cdc"]["generation"] < generation:
                    del self.tables.mirror[row_id]
        changes = [c for c in pending if isinstance(c, Change)]
        self.rng.shuffle(changes)
        if changes:
            schema = pa.schema(
                [("origin", pa.string()), ("position", pa.binary()), ("generation", pa.int64())]
            )
            batch = pa.RecordBatch.from_pylist([c.values() for c in changes], schema=schema)
            numbers = generations(batch, self.fences).tolist()
            rows = [
                {**c.row.as_dict(), "generation": number} for c, number in zip(changes, numbers, strict=True)
            ]
            self.tables.merge(rows, now=10, generation=generation)
        self.merged = self.last_batch
        if self.expires:
            self.expire()

    def expire(self) -> None:
        """Expire what :mod:`airflow_cdc_provider.jobs.maintain` would expire, at the earliest.

        Batches are kept for longer than a node is silent (docs/design/fences.md).
        """
        if not all(node.answers for node in self.nodes):
            return
        known = {fence.origin for fence in newest_event(self.fences)}
        waiting = [
            number
            for number, batch in self.batches.items()
            if known and any(isinstance(c, Change) and c.origin not in {*known, ""} for c in batch)
        ]
        last = min([self.last_batch - 1, *(number - 1 for number in waiting)])
        for number in [n for n in self.batches if n <= last]:
            del self.batches[number]

    def run(self, *, whole: bool = False) -> None:
        self.capture(whole=whole)
        self.merge()

    def held(self) -> dict[Any, Any]:
        rows = [c.row for node in self.nodes for c in node.held]
        return {place: row for place, row in oracle.visible(rows, 10).items() if row[0]}


def live_through(history: History, steps: int) -> None:
    rng = history.rng
    kinds = {"write": 12, "truncate": 3, "run": 4, "capture": 2, "restart": 2, "join": 1, "wait": 1}
    if history.connected:
        # A snapshot makes up for lost segments once the nodes' records are captured: they must answer.
        kinds |= {"snapshot": 1} | ({"cut": 2} if history.silences else {"lose": 1})
    for _ in range(steps):
        step = rng.choices(list(kinds), list(kinds.values()))[0]
        history.now_ms += rng.randint(1, 2_000)
        if step == "wait":
            history.now_ms += rng.choice([30_000, QUIET_MS, 2 * 3_600_000])
        elif step != "join" or len(history.nodes) < 5:
            getattr(history, step)()
    history.now_ms += QUIET_MS
    history.run(whole=True)


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("connected", [True, False])
@settings(max_examples=examples(150))
@given(st.integers(0, 1 << 32), st.integers(5, 60))
def test_mirror_is_what_the_nodes_hold(connected: bool, expires: bool, seed: int, steps: int) -> None:
    history = History(random.Random(seed), connected=connected, expires=expires)

    live_through(history, steps)

    assert shown_rows(history.tables, 10) == history.held()
