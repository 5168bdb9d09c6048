"""Random changes of a table of ScyllaDB as rows of its log."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from server_kit.scylla.base_table import BaseTable
from server_kit.scylla.cluster import LoggedChange
from server_kit.scylla.images import read_images
from server_kit.scylla.log_rows import changes_of
from server_kit.scylla.mutations import mutations
from server_kit.scylla.statements import Batch
from server_kit.scylla.timeuuids import log_time
from server_kit.scylla.workload import Workload
from tests.unit.server_kit.scylla.item import T


def random_changes(
    chance: random.Random, base: BaseTable, count: int, at_us: int = T
) -> Iterator[LoggedChange]:
    now = at_us // 1_000_000
    workload = Workload(chance, base, lambda: at_us + chance.randrange(50), short_ttls=True)
    for request in workload.requests(count, lambda: now):
        statements = request.statements if isinstance(request, Batch) else (request,)
        timed = [replace(s, timestamp=at_us) if s.timestamp is None else s for s in statements]
        made = mutations(base, timed, now)
        for mutation in made:
            for change in changes_of(mutation, read_images(base, mutation, now)):
                yield LoggedChange(
                    base.table, mutation.key, chance.randbytes(16), log_time(change.time, chance), change
                )
        for mutation in made:
            base.apply(mutation)
