"""What a real VTGate sends for a table of ten columns, recorded once, and a server that sends it again.

A recording has three streams of one table: its copy; then transactions of one row each; then transactions of
ten rows. 60 % of the changed rows are inserts, 30 % updates, 10 % deletes. It is made by vtcombo over MySQL
and stays in the user's cache.

The server (``python -m benchmarks.vitess_recording FOLDER STREAM``) prints its port and answers a stream
with no position with the copy, any other with STREAM. It is a process of its own, so that its CPU time isn't
counted with that of its clients.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np

from airflow_cdc_provider.sources.vitess import protocol
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.protocol import TABLET_TYPES, ExecuteRequest, VGtid, VStreamRequest
from airflow_cdc_provider.sources.vitess.requests import current_position, filter_of
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient, execute_request
from airflow_cdc_provider.sources.vitess.wire import COMMIT, COPY_COMPLETED, VGTID, scan, split_recording
from server_kit import VitessServer
from server_kit.cache import cached
from server_kit.vitess import Keyspace

KEYSPACE: Final = "bench"
TABLE: Final = "orders"
COPY: Final = "copy"
SINGLE: Final = "single"
TENS: Final = "tens"
ROWS: Final = {COPY: 200_000, SINGLE: 100_000, TENS: 200_000}
"""How many rows each stream has."""

_SCHEMA: Final = f"""\
create table {TABLE} (
  id bigint not null primary key, customer int not null, status enum('new','paid','sent') not null,
  total decimal(12,2) not null, weight double, created datetime(3) not null, due date, note varchar(100),
  tags json, code varbinary(16))"""
_STATEMENTS: Final = ("SHOW DATABASES", f"SHOW VITESS_SHARDS LIKE '{KEYSPACE}/%'")
"""Debezium's request to VTGate, without its hint and semicolon."""
_WRITERS: Final = 4
_AT_A_TIME: Final = 1_000
_PER_TRANSACTION: Final = {SINGLE: 1, TENS: 10}
_HEAD: Final = "head"


@dataclass(frozen=True)
class Recording:
    """A recording.

    Args:
        folder: Its files: a recording of responses per stream, and where each begins.
    """

    folder: Path

    @cached_property
    def starts(self) -> dict[str, str]:
        """The GTID set at which each stream begins."""
        starts: dict[str, str] = json.loads((self.folder / "starts.json").read_text())
        return starts

    @cached_property
    def ends(self) -> dict[str, str]:
        """The GTID set at which each stream ends."""
        return {stream: _last_gtid(self.responses(stream)) for stream in ROWS}

    def responses(self, stream: str) -> list[bytes]:
        """Return the responses of a stream."""
        data, starts, ends = split_recording((self.folder / f"{stream}.vstream").read_bytes())
        return [data[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    @contextmanager
    def served(self, stream: str) -> Iterator[int]:
        """Run a server that sends a stream; give its port."""
        command = [sys.executable, "-m", "benchmarks.vitess_recording", str(self.folder), stream]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield int(process.stdout.readline())
            finally:
                process.terminate()


def recording() -> Recording:
    """Return the recording, and make it first if there is none."""
    version = "1-" + "-".join(map(str, ROWS.values()))
    return Recording(cached("vitess-recording", version, _record, "a recording of VTGate"))


def _record(folder: Path) -> None:
    """Write a table and what VTGate sends of it."""
    with VitessServer(keyspaces=[Keyspace(KEYSPACE)]) as server, server.client() as client:
        server.define(KEYSPACE, _SCHEMA)
        for number, sql in enumerate(_STATEMENTS):
            (folder / f"answer{number}").write_bytes(_answer(client, sql))
        _write(server, 0, ROWS[COPY], 0)
        _keep(client, folder, COPY, "")
        starts = {}
        first = ROWS[COPY]
        for stream, size in _PER_TRANSACTION.items():
            starts[stream] = _head(client)
            _write(server, first, ROWS[stream], size)
            first += ROWS[stream]
            _keep(client, folder, stream, starts[stream])
        (folder / "starts.json").write_text(json.dumps(starts))


def _answer(client: VtgateClient, sql: str) -> bytes:
    call: Any = client._channel.unary_unary(protocol.service("Execute"))
    answer: bytes = call(execute_request(sql, "", client.values))
    return answer


def _head(client: VtgateClient) -> str:
    place: Position = current_position(client, VitessOptions(keyspace=KEYSPACE), [f"{KEYSPACE}/0"])
    return place.shards[f"{KEYSPACE}/0"].gtid


def _write(server: VitessServer, first: int, rows: int, size: int) -> None:
    """Write rows by some connections: inserts of many rows at a time, or transactions of ``size`` changes."""
    part = rows // _WRITERS
    with ThreadPoolExecutor(_WRITERS) as pool:
        write = partial(_write_part, server, part, size)
        list(pool.map(write, range(first, first + rows, part)))


def _write_part(server: VitessServer, count: int, size: int, first: int) -> None:
    connection = server.connect(KEYSPACE)
    inserts = count * 6 // 10 if size else count
    updates = count * 3 // 10
    numbers = iter(range(first, first + inserts))
    at_a_time = size or _AT_A_TIME
    changes = [_insert(number) for number in numbers]
    if size:
        changes += [
            f"update {TABLE} set status = 'paid', total = total + 1 where id = {n}"
            for n in range(first, first + updates)
        ]
        changes += [
            f"delete from {TABLE} where id = {n}"
            for n in range(first + updates, first + updates + count - inserts - updates)
        ]
    with connection.cursor() as cursor:
        for begin in range(0, count, at_a_time):
            some = changes[begin : begin + at_a_time]
            if not size:
                cursor.execute(_joined(some))
                continue
            if size > 1:
                cursor.execute("begin")
            for change in some:
                cursor.execute(change)
            if size > 1:
                cursor.execute("commit")


def _insert(n: int) -> str:
    return (
        f"insert into {TABLE} values ({n}, {n * 7919 % 100_000}, '{('new', 'paid', 'sent')[n % 3]}', "
        f"{n % 10_000}.{n % 100:02d}, {n * 0.01 if n % 10 else 'null'}, "
        f"'2024-{n % 12 + 1:02d}-{n % 28 + 1:02d} {n % 24:02d}:{n % 60:02d}:07.{n % 1000:03d}', "
        f"'2024-{n % 12 + 1:02d}-28', 'some text to fill the row, number {n}', "
        f"""'{{"a": [{n % 7}, "b"], "gift": true}}', 0x{n:016x})"""
    )


def _joined(inserts: list[str]) -> str:
    lead = f"insert into {TABLE} values "
    return lead + ",".join(insert.removeprefix(lead) for insert in inserts)


def _keep(client: VtgateClient, folder: Path, stream: str, gtid: str) -> None:
    """Record a stream until it has given its rows."""
    vgtid = VGtid()
    vgtid.shard_gtids.add(keyspace=KEYSPACE, shard="0", gtid=gtid)
    request = VStreamRequest(tablet_type=TABLET_TYPES["PRIMARY"], vgtid=vgtid, filter=filter_of(None))
    responses = client.vstream(request.SerializeToString())
    rows = 0
    with (folder / f"{stream}.vstream").open("wb") as file:
        for response in responses:
            events = scan(response)
            rows += len(events.changes)
            file.write(_varint(len(response)) + response)
            copied = (events.types == COPY_COMPLETED).any()
            if rows == ROWS[stream] and (copied if stream == COPY else (events.types == COMMIT).any()):
                break
    responses.cancel()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _last_gtid(responses: list[bytes]) -> str:
    for response in reversed(responses):
        events = scan(response)
        positions = np.flatnonzero(events.types == VGTID)
        if len(positions):
            (entry,) = VGtid.FromString(events.body(int(positions[-1]))).shard_gtids
            return str(entry.gtid)
    raise ValueError("a stream without a VGTID")


def _serve(folder: Path, stream: str) -> None:
    recorded = Recording(folder)
    played = {COPY: recorded.responses(COPY), stream: recorded.responses(stream)}
    answers = {sql: (folder / f"answer{number}").read_bytes() for number, sql in enumerate(_STATEMENTS)}

    def vstream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        (entry,) = VStreamRequest.FromString(request).vgtid.shard_gtids
        yield from played[stream if entry.gtid else COPY]
        while context.is_active():  # VTGate's streams don't end either
            time.sleep(0.1)

    def execute(request: bytes, context: grpc.ServicerContext) -> bytes:
        sql = ExecuteRequest.FromString(request).query.sql
        found = next((answer for known, answer in answers.items() if known in sql), None)
        if found is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"no answer to {sql!r} was recorded")
        return found

    server = grpc.server(ThreadPoolExecutor(8))
    handlers: dict[str, Any] = {
        "VStream": grpc.unary_stream_rpc_method_handler(vstream),
        "Execute": grpc.unary_unary_rpc_method_handler(execute),
    }
    name = protocol.service("").strip("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2])
