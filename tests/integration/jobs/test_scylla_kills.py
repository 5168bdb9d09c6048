"""ScyllaDB's capture is killed while it reads and while it commits: mirrors equal tables, nothing doubles.

Tables are written to all the time, streams change, and log rows come late, though within the confidence
window. Syncs of short windows, many batches each, are killed at the first file that their tasks write, at the
first file of a commit, or at a random moment; each starts where the last commit ended.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from server_kit.scylla import SystemKeyspaces, Turmoil, draw_table
from tests.integration.jobs.conftest import Application
from tests.integration.jobs.imitated import assert_mirror_equals_model, declare, imitated
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration

CONFIDENCE_SECONDS = 4.0


class Writers:
    """Writes to an imitated cluster until it is stopped, in bursts; after each all log rows are there."""

    def __init__(self, turmoil: Turmoil) -> None:
        self.turmoil = turmoil
        self.slowest_seconds = 0.0
        self._stopped = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writers:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopped.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        assert self.slowest_seconds < CONFIDENCE_SECONDS - 0.5, "log rows came later than readers wait for"

    def _run(self) -> None:
        try:
            while not self._stopped.wait(0.1):
                began = time.monotonic()
                self.turmoil.run(4)
                self.turmoil.settle()
                self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
        except BaseException as error:  # noqa: BLE001  # it is raised where the writers are stopped
            self._failed = error


def kill_and_recover(shop: Shop, names: SystemKeyspaces, application: Application, kills: int) -> None:
    cluster = imitated(shop, names, nodes=2, seed=kills)
    turmoil = Turmoil(cluster, random.Random(kills), late=0.2, late_requests=3, events=0.02, short_ttls=False)
    for number in range(3):
        turmoil.add(draw_table(turmoil.chance, shop.keyspace, f"t{number}"))
    short = {
        "confidence_window_seconds": CONFIDENCE_SECONDS,
        "query_window_seconds": 3,
        "max_query_window_seconds": 3,
        "fetch_size": 5,
    }
    declare(shop, names, source=short, snapshot={"mode": "never"})
    turmoil.run(30)
    turmoil.settle()
    time.sleep(CONFIDENCE_SECONDS + 0.1)
    assert shop.stage("sync").ok  # so that kills hit captures
    shop.declare_catalog()
    warehouse = Path(shop.declaration["lake"]["catalog_options"]["warehouse"].removeprefix("file:"))
    changes = warehouse / shop.keyspace / f"{shop.name}_changes"
    chance = random.Random(kills)
    ways: list[Callable[[subprocess.Popen[bytes]], bool]] = [
        lambda process: application.kill_when(process, lambda: set((changes / "data").glob("*"))),
        lambda process: application.kill_when(process, lambda: set((changes / "metadata").glob("*"))),
        lambda process: application.kill(process, after_seconds=chance.uniform(5, 20)),
    ]
    killed = 0
    with Writers(turmoil):
        for number in range(kills):
            process = application.start("sync", shop.declaration, shop.connection)
            killed += ways[number % len(ways)](process)
    assert killed >= kills * 2 // 3
    time.sleep(CONFIDENCE_SECONDS + 0.1)
    declare(shop, names, source={"confidence_window_seconds": CONFIDENCE_SECONDS})
    outcome = shop.stage("sync")
    assert outcome.ok, outcome.error
    for name, base in cluster.tables.items():
        assert_mirror_equals_model(shop, name, base)
    places = shop.changes().select("source_table", "position")
    captured = places.count()
    assert places.distinct().count() == captured, "what was committed isn't captured again"
    assert captured == turmoil.done["change"]
    assert not shop.changes("quarantine").count()


@pytest.mark.covers("SCY-OFF-01", "SCY-OFF-06")
@pytest.mark.long
def test_a_killed_capture_is_made_good_by_the_next_one(
    shop: Shop, names: SystemKeyspaces, application: Application
) -> None:
    kill_and_recover(shop, names, application, kills=2)


@pytest.mark.long
def test_a_capture_killed_twenty_times_loses_and_doubles_nothing(
    shop: Shop, names: SystemKeyspaces, application: Application
) -> None:
    kill_and_recover(shop, names, application, kills=20)
