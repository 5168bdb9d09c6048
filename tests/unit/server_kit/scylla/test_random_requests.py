"""Log rows of random requests give the tables again, whatever the order in which they are read."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.cluster import LoggedChange
from server_kit.scylla.images import read_images
from server_kit.scylla.log_rows import POSTIMAGE, PREIMAGE, changes_of
from server_kit.scylla.mutations import mutations
from server_kit.scylla.statements import Batch
from server_kit.scylla.tables import CdcOptions, Preimage
from server_kit.scylla.timeuuids import log_time
from server_kit.scylla.workload import Workload, draw_table
from tests.oracles.scylla_log import Replay
from tests.unit.server_kit.scylla.item import NOW, T


@pytest.mark.parametrize("seed", range(40))
def test_log_rows_of_random_requests_give_the_table_again(seed: int) -> None:
    chance = random.Random(seed)
    options = CdcOptions(preimage=chance.choice(list(Preimage)), postimage=chance.random() < 0.5)
    base = BaseTable(draw_table(chance, "k", "t", cdc=options))
    workload = Workload(chance, base, lambda: T + chance.randrange(50), short_ttls=True)
    logged: list[LoggedChange] = []
    for request in workload.requests(60, lambda: NOW):
        statements = request.statements if isinstance(request, Batch) else (request,)
        timed = [replace(s, timestamp=T) if s.timestamp is None else s for s in statements]
        made = mutations(base, timed, NOW)
        for mutation in made:
            for change in changes_of(mutation, read_images(base, mutation, NOW)):
                logged.append(
                    LoggedChange(base.table, mutation.key, b"s" * 16, log_time(change.time, chance), change)
                )
                check_form(logged[-1])
        for mutation in made:
            base.apply(mutation)
    chance.shuffle(logged)
    replay = Replay(base.table)
    for placed in logged:
        for number in range(len(placed.change.rows)):
            replay.add(defaultdict(lambda: None, placed.columns(number)))
    found = replay.finish()
    for now in (NOW, NOW + 2):
        assert found.select(now) == base.select(now)


def check_form(logged: LoggedChange) -> None:
    """Images enclose the other rows, each row has at most one, and only the last row ends the batch."""
    rows = logged.change.rows
    kinds = [0 if r.operation == PREIMAGE else 2 if r.operation == POSTIMAGE else 1 for r in rows]
    assert kinds == sorted(kinds)
    assert [r.end_of_batch for r in rows] == [False] * (len(rows) - 1) + [True]
    for image in (PREIMAGE, POSTIMAGE):
        of = [r.clustering for r in rows if r.operation == image]
        assert len(of) == len(set(of))
