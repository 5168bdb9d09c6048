"""What happens to a cluster while it is written to: generations, splits, late log rows, altered logs.

Example::

    turmoil = Turmoil(cluster, random.Random(1))
    for table in tables:
        turmoil.add(table)
    turmoil.run(500)
    turmoil.settle()        # all log rows are there now
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from server_kit.scylla.cluster import ImitatedScylla, LoggedChange
from server_kit.scylla.random_values import SCALAR_TYPES
from server_kit.scylla.tables import Column, Preimage, Table
from server_kit.scylla.values import CqlType
from server_kit.scylla.workload import Workload

_TABLETS = (1, 2, 4, 8)


@dataclass
class Turmoil:
    """Random requests on tables, and what comes between them.

    Args:
        cluster: The cluster.
        chance: Where chance comes from.
        late: How often log rows are kept back, as a share of requests.
        late_requests: After how many further requests they are written at the latest.
        events: How often something happens to the cluster, as a share of requests.
        short_ttls: Whether TTLs of a second are drawn, in tables without lists.
        done: How often what happened, by kind; ``request``, ``change`` and ``late`` are counted too.
    """

    cluster: ImitatedScylla
    chance: random.Random
    late: float = 0.1
    late_requests: int = 20
    events: float = 0.03
    short_ttls: bool = True
    done: Counter[str] = field(default_factory=Counter)
    _workloads: list[Workload] = field(default_factory=list)
    _late: list[tuple[int, list[LoggedChange]]] = field(default_factory=list)

    def add(self, table: Table) -> None:
        """Create a table and write to it from now on."""
        base = self.cluster.create_table(table)
        # Places of lists are drawn before the statement: no element may expire in between.
        lists = any(
            c.type.multi_cell and c.type.name == "list" for c in (*table.static_columns, *table.regular)
        )
        self._workloads.append(Workload(self.chance, base, short_ttls=self.short_ttls and not lists))

    def run(self, requests: int) -> None:
        """Make requests; the server chooses their timestamps."""
        for _ in range(requests):
            if self.chance.random() < self.events:
                self._happen()
            workload = self.chance.choice(self._workloads)
            for request in workload.requests(1, lambda: self.cluster.clock_us() // 1_000_000):
                late = self.chance.random() < self.late
                logged = self.cluster.execute(workload.table, request, late=late)
                self.done["request"] += 1
                self.done["change"] += len(logged)
                if late:
                    self.done["late"] += len(logged)
                    due = self.done["request"] + self.chance.randrange(1, self.late_requests + 1)
                    self._late.append((due, logged))
            self._write_late(self.done["request"])

    def settle(self) -> None:
        """Write all log rows that were kept back."""
        self._write_late(None)

    def _write_late(self, now: int | None) -> None:
        for due, logged in self._late:
            if now is None or due <= now:
                self.cluster.write_log(logged)
        self._late = [] if now is None else [entry for entry in self._late if entry[0] > now]

    def _happen(self) -> None:
        workload = self.chance.choice(self._workloads)
        kinds: dict[str, Callable[[Workload], bool]] = {
            "streams": self._new_streams,
            "images": self._alter_images,
            "column": self._add_column,
        }
        kind = self.chance.choice([*kinds, "streams"])
        self.done[kind] += kinds[kind](workload)

    def _new_streams(self, workload: Workload) -> bool:
        """Begin a generation, or split or merge the tablets of a table, a fraction of a second ahead."""
        cluster, name = self.cluster, workload.table.name
        timeline = cluster.stream_sets[name] if cluster.tablets else cluster.generations
        at_ms = cluster.clock_us() // 1000 + self.chance.randrange(300)
        if timeline.sets and timeline.sets[-1].time_ms >= at_ms:
            return False
        if cluster.tablets:
            present = len(cluster.stream_sets[name].sets[-1].streams)
            others = [number for number in _TABLETS if number != present]
            cluster.resize_tablets(name, self.chance.choice(others), at_ms)
        else:
            cluster.new_generation(at_ms, nodes=self.chance.randrange(1, 4))
        return True

    def _alter_images(self, workload: Workload) -> bool:
        preimage = self.chance.choice(list(Preimage))
        self.cluster.alter_cdc(workload.table.name, preimage=preimage, postimage=self.chance.random() < 0.5)
        return True

    def _add_column(self, workload: Workload) -> bool:
        table = workload.table
        if len(table.regular) >= 9:
            return False
        kind = CqlType(self.chance.choice(SCALAR_TYPES))
        if self.chance.random() < 0.3:
            kind = CqlType("set", (CqlType("int"),))
        self.cluster.add_column(table.name, Column(f"n{len(table.regular)}", kind))
        return True
