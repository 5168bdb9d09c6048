"""Rows of a snapshot are counted while tasks read them, and what is read twice counts once."""

from __future__ import annotations

import json
import pickle
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.jobs.metrics import scanned as module
from airflow_cdc_provider.jobs.metrics.scanned import REFRESH_ROWS, Counted, ScannedRows, Tally
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics


def reported(path: Path) -> list[tuple[str, int]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(line["table"], line["rows"]) for line in lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


@pytest.mark.parametrize("page", [1, 700, 5000, 9999, 10_000])
def test_a_table_is_reported_at_least_every_10_000_rows_and_at_its_end(path: Path, page: int) -> None:
    tally = Tally(path)
    for rows in range(page, 45_001, page):
        tally.add(1, 0, 0, "k.a", rows)
        assert rows - max([n for _, n in reported(path)] or [0]) <= REFRESH_ROWS, "never further behind"
    tally.end(1, 0, 0)
    tally.settle(1, ["k.a", "k.empty"])
    numbers = [rows for table, rows in reported(path) if table == "k.a"]
    assert numbers[-1] == 45_000 // page * page
    assert all(b - a <= REFRESH_ROWS for a, b in zip([0, *numbers], numbers, strict=False))
    assert ("k.empty", 0) in reported(path)
    assert len(numbers) < 12, "no line for each page"


def test_tasks_and_commits_add_up_by_table(path: Path) -> None:
    tally = Tally(path)
    tally.add(1, 0, 0, "k.a", 10)
    tally.add(1, 1, 1, "k.a", 5)
    tally.add(1, 1, 1, "k.b", 7)
    tally.settle(1, [])
    tally.add(2, 0, 2, "k.a", 1)
    assert tally.rows() == {"k.a": 16, "k.b": 7}


def test_an_attempt_that_failed_counts_no_more_once_another_has_ended() -> None:
    tally = Tally(None)
    tally.add(1, 0, 7, "k.a", 4000)
    tally.add(1, 0, 8, "k.a", 1000)
    assert tally.rows() == {"k.a": 4000}, "the next attempt is behind, and the number doesn't fall"
    tally.add(1, 0, 8, "k.a", 3900)
    tally.end(1, 0, 8)
    assert tally.rows() == {"k.a": 3900}


def test_a_straggler_of_a_commit_that_is_made_does_not_count() -> None:
    tally = Tally(None)
    tally.add(1, 0, 7, "k.a", 4000)
    tally.end(1, 0, 7)
    tally.settle(1, ["k.a"])
    tally.add(1, 0, 8, "k.a", 5000)
    tally.end(1, 0, 8)
    assert tally.rows() == {"k.a": 4000}


def test_a_file_that_can_not_be_written_stops_reporting_alone(tmp_path: Path) -> None:
    tally = Tally(tmp_path / "nowhere" / "rows.jsonl")
    tally.add(1, 0, 0, "k.a", 20_000)
    tally.settle(1, ["k.a"])
    assert tally.rows() == {"k.a": 20_000}


@dataclass
class Spark:
    """Stands for a SparkContext."""

    settings: dict[str, str]

    @property
    def master(self) -> str:
        return self.settings["spark.master"]

    def getConf(self) -> dict[str, str]:
        return self.settings


CLUSTER = {
    "spark.master": "spark://m:7077",
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "127.0.0.1",
}
LOCAL = {"spark.master": "local[2]", "spark.driver.host": "a-name-that-nobody-knows"}


def scanned(path: Path | None, settings: dict[str, str] = CLUSTER) -> ScannedRows:
    return ScannedRows(cast(Any, Spark(settings)), path)


class Pages(Reader):
    """Reads so many pages of so many rows of a table."""

    def read(self, parts: Iterable[Any], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        for table, pages, rows in parts:
            for number in range(pages):
                if number == 3 and table == "k.fails":
                    raise OSError("the node is away")
                page = [{"source_table": table, "key": b"k"}] * rows
                yield pa.RecordBatch.from_pylist(page, schema=CHANGE_SCHEMA)


def read(reader: Any, *parts: Any) -> int:
    again = pickle.loads(pickle.dumps(reader))
    return sum(batch.num_rows for batch in again.read(parts, ReadMetrics()))


def test_tasks_report_to_the_driver_while_they_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = count()
    monkeypatch.setattr(module, "_task", lambda: (next(tasks), 0))
    with scanned(path) as rows:
        reader = rows.counted(Pages(), 1)
        running = iter(reader.read([("k.a", 2, 5000), ("k.b", 1, 3)], ReadMetrics()))
        next(running)
        next(running)
        deadline = time.monotonic() + 10
        while rows.tally.rows() != {"k.a": 10_000}:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert reported(path) == [("k.a", 10_000)], "before the task has ended"
        assert sum(batch.num_rows for batch in running) == 3
        assert rows.tally.rows() == {"k.a": 10_000, "k.b": 3}, "all of it, once a task has ended"
        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(lambda n: read(reader, ("k.c", 10, n)), range(1, 9))) == 360
        assert rows.tally.rows()["k.c"] == 360


def test_a_page_with_more_rows_is_reported_piece_by_piece(path: Path) -> None:
    with scanned(path, LOCAL) as rows:
        assert read(rows.counted(Pages(), 1), ("k.a", 2, 25_000)) == 50_000
        rows.tally.settle(1, ["k.a"])
    numbers = [rows for _, rows in reported(path)]
    assert numbers[-1] == 50_000
    assert all(after - before <= REFRESH_ROWS for before, after in zip([0, *numbers], numbers, strict=False))


def test_where_nobody_can_listen_rows_are_read_all_the_same(path: Path) -> None:
    with scanned(path, {"spark.master": "yarn", "spark.driver.host": "203.0.113.1"}) as rows:
        reader = Pages()
        assert rows.counted(reader, 1) is reader
        assert rows.tally.rows() == {}


def test_what_a_failed_attempt_read_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = count()
    monkeypatch.setattr(module, "_task", lambda: (0, next(attempts)))
    with scanned(None) as rows:
        reader = rows.counted(Pages(), 1)
        with pytest.raises(OSError, match="away"):
            read(reader, ("k.a", 2, 100), ("k.fails", 9, 100))
        read(reader, ("k.a", 2, 100), ("k.b", 1, 50))
        assert {table: n for table, n in rows.tally.rows().items() if n} == {"k.a": 200, "k.b": 50}


def test_messages_without_the_token_are_ignored_and_noise_does_no_harm() -> None:
    with scanned(None) as rows:
        address = cast(Counted, rows.counted(Pages(), 1)).address
        wrong = Counted(Pages(), address, "0" * 32, 1)
        assert read(wrong, ("k.a", 4, 100)) == 400
        for noise in (b"\n", b"{}\n", b'["x"]\n', b"\xff" * 9000, b""):
            with socket.create_connection(address, 5) as sender:
                sender.sendall(noise)
        assert read(rows.counted(Pages(), 1), ("k.b", 1, 5)) == 5
        assert rows.tally.rows() == {"k.b": 5}


def test_a_driver_that_can_not_be_reached_holds_nothing_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    assert read(Counted(Pages(), address, "t", 1), ("k.a", 4, 100)) == 400


def test_the_token_shows_nowhere() -> None:
    with scanned(None) as rows:
        reader = cast(Counted, rows.counted(Pages(), 1))
        assert reader.token not in repr(reader)
