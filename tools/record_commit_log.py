"""Record a small commit log of a real Cassandra node, with what SELECT says of it: fixtures for readers.

Usage, for one variant of ``tests/fixtures/cassandra/B``::

    python -m tools.record_commit_log FOLDER [--release 4.1.10 --java /path/to/java11] [--set NAME=YAML ...]

``--set`` gives lines of cassandra.yaml, for example ``storage_compatibility_mode=NONE`` or
``commitlog_compression='[{class_name: SnappyCompressor}]'``. ``--keystore FILE`` encrypts the log with the
key ``cdc:1`` of a JCEKS file whose passwords are ``cassandra``. ``--crash`` kills the node at the end and
starts it again, as an accident does: its folder before the restart is kept as ``killed``. ``--archive`` has
the node archive its segments, and records the copies.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from server_kit import CassandraServer
from server_kit.jars import CASSANDRA_VERSION
from tests.integration.jobs.workloads import create_cassandra, write_cassandra

if TYPE_CHECKING:
    from cassandra.cluster import Session

KEYSPACE = "shop"
OTHER_TABLES = {
    "visits": "CREATE TABLE {ks}.visits (page text PRIMARY KEY, n counter) WITH cdc = true",
    "gone": "CREATE TABLE {ks}.gone (id int PRIMARY KEY, v text) WITH cdc = true",
    "evolved": "CREATE TABLE {ks}.evolved (id int PRIMARY KEY, a int, b text) WITH cdc = true",
    "ties": "CREATE TABLE {ks}.ties (id int PRIMARY KEY, t text, b blob) WITH cdc = true",
    "quiet": "CREATE TABLE {ks}.quiet (id int PRIMARY KEY, v text)",
}
TIES = (  # two writes at the same time: releases differ in which of them counts
    (1, ("", "t = 'b'"), (" AND TTL 100000", "t = 'a'")),
    (2, ("", "b = 0x7f"), ("", "b = 0x80")),
    (3, ("", "t = null"), ("", "t = 'a'")),
    (4, (" AND TTL 100000", "t = 'b'"), (" AND TTL 200000", "t = 'a'")),
)
_PATIENCE_SECONDS = 60


def write(session: Session, statements: int) -> None:
    """Write what is to be recorded; ends some seconds after the last short TTL has run out."""
    ks = KEYSPACE
    create_cassandra(session, ks)
    for statement in OTHER_TABLES.values():
        session.execute(statement.format(ks=ks))
    for number in range(5):
        session.execute(f"INSERT INTO {ks}.gone (id, v) VALUES ({number}, 'before')")
        session.execute(f"INSERT INTO {ks}.quiet (id, v) VALUES ({number}, 'not captured')")
        session.execute(f"UPDATE {ks}.visits SET n = n + {number} WHERE page = 'p{number % 2}'")
        session.execute(f"INSERT INTO {ks}.evolved (id, a, b) VALUES ({number}, {number}, 'b')")
    session.execute(f"TRUNCATE {ks}.gone")
    session.execute(f"INSERT INTO {ks}.gone (id, v) VALUES (7, 'after')")
    session.execute(f"ALTER TABLE {ks}.evolved DROP a")
    session.execute(f"ALTER TABLE {ks}.evolved ADD c list<int>")
    session.execute(f"INSERT INTO {ks}.evolved (id, b, c) VALUES (9, 'new', [1, 2])")
    session.execute(f"INSERT INTO {ks}.evolved (id, b) VALUES (10, 'once') IF NOT EXISTS")
    session.execute(
        f"BEGIN BATCH INSERT INTO {ks}.plain (id, a) VALUES (900, 'batch'); "
        f"INSERT INTO {ks}.keys_only (p, c) VALUES (900, 1) USING TTL 100000; APPLY BATCH"
    )
    for id_, first, second in TIES:
        for using, change in (first, second):
            session.execute(f"UPDATE {ks}.ties USING TIMESTAMP 10{using} SET {change} WHERE id = {id_}")
    write_cassandra(session, ks, 5, statements)
    time.sleep(4)


def describe(server: CassandraServer, session: Session) -> str:
    """Return the keyspace's schema with table ids and dropped columns."""
    if not server.version.startswith("3."):
        rows = session.execute(f"DESCRIBE KEYSPACE {KEYSPACE} WITH INTERNALS")
        return "\n\n".join(row.create_statement for row in rows) + "\n"
    # Before 4.0 DESCRIBE knows no ids, but a snapshot keeps them.
    server.nodetool("snapshot", "-t", "recorded", KEYSPACE)
    parts = [
        path.read_text() for path in sorted(server.folder.glob("data/*/*/snapshots/recorded/schema.cql"))
    ]
    return "\n".join(parts)


def record_rows(session: Session, folder: Path) -> None:
    """Store the result of SELECT JSON, and its time."""
    folder.mkdir()
    tables = session.execute(
        f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{KEYSPACE}'"
    )
    for row in tables:
        found = sorted(line[0] for line in session.execute(f"SELECT JSON * FROM {KEYSPACE}.{row.table_name}"))
        text = "".join(json.dumps({"json": line}) + "\n" for line in found)
        name = f"{KEYSPACE}.{row.table_name}.jsonl.gz"
        (folder / name).write_bytes(gzip.compress(text.encode(), mtime=0))
    (folder / "_index.json").write_text(json.dumps({"read_at_s": int(time.time())}) + "\n")


def keep_segments(source: Path, target: Path) -> None:
    """Copy segments, packed, and their indexes."""
    target.mkdir()
    for path in sorted(source.glob("CommitLog-*")):
        if path.suffix == ".idx":
            shutil.copyfile(path, target / path.name)
        else:
            (target / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def main(arguments: Sequence[str] | None = None) -> None:
    """Record one variant."""
    parser = argparse.ArgumentParser(description="Record a small commit log of a real Cassandra node")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--release", default=CASSANDRA_VERSION)
    parser.add_argument("--java", default="")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=YAML")
    parser.add_argument("--keystore", type=Path)
    parser.add_argument("--statements", type=int, default=300)
    parser.add_argument("--crash", action="store_true")
    parser.add_argument("--archive", action="store_true")
    asked = parser.parse_args(arguments)
    settings: dict[str, Any] = {
        name: yaml.safe_load(text) for name, _, text in (line.partition("=") for line in asked.set)
    }
    asked.folder.mkdir(parents=True)
    server = CassandraServer(
        version=asked.release, java=asked.java, keystore=asked.keystore, settings=settings
    )
    archive = server.folder / "archive"
    if asked.archive:
        archive.mkdir()
        (server.folder / "conf").mkdir()
        command = f"archive_command=/bin/cp %path {archive}/%name\n"
        (server.folder / "conf" / "commitlog_archiving.properties").write_text(command)
    with server:
        session = server.connect()
        write(session, asked.statements)
        (asked.folder / "schema.cql").write_text(describe(server, session))
        record_rows(session, asked.folder / "rows")
        if asked.crash:
            server.kill()
            keep_segments(server.cdc_raw, asked.folder / "killed")
            server.start()
        else:
            server.roll_segment(session)
        server.stop(drain=True)
        _await(lambda: any(server.cdc_raw.glob("*.log")), "segments in cdc_raw")
        keep_segments(archive if asked.archive else server.cdc_raw, asked.folder / "cdc_raw")


def _await(ready: Any, what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} after {_PATIENCE_SECONDS} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
