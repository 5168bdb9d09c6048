"""Segments of Cassandra, what they contain, and keystores: every guarantee for corrupt input.

The first byte of an input chooses a part, the rest is its own:

=========== ==========================================================================================
`segment`   options, length and text of an index, then a segment's bytes; checksums are set right if the
            options say so, because no chance finds one
`update`    table, then a change's payload; it stands between two sound ones
`mutation`  version, ordinal, then a mutation as it stands in quarantine
`system`    updates of system tables: schema history and truncations
`keystore`  a JCEKS file; its digest is set right
=========== ==========================================================================================
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.contribution import LIVE_ROW_SCHEMA, UNRESOLVED
from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, QUARANTINE, SCHEMA, TRUNCATE
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, CorruptInput
from airflow_cdc_provider.formats.jceks import read_secret_keys
from airflow_cdc_provider.sources.cassandra.capture import LogFolder, head, lag, plan_segments
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.commit_log import sections
from airflow_cdc_provider.sources.cassandra.commit_log.encryption import Keys
from airflow_cdc_provider.sources.cassandra.commit_log.system_tables import system_tables
from airflow_cdc_provider.sources.cassandra.commit_log.tables import LogTables, log_tables
from airflow_cdc_provider.sources.cassandra.commit_log.truncation import read_local_updates
from airflow_cdc_provider.sources.cassandra.payload import OBSERVED_TAG, VERSIONS, Position, mutation_payload
from airflow_cdc_provider.sources.cassandra.quarantine import retry_quarantined
from airflow_cdc_provider.sources.cassandra.reader import read_segments
from airflow_cdc_provider.sources.cassandra.records import ReadCounts
from airflow_cdc_provider.sources.cassandra.schema_history import read_history
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.cql.reasons import CODES
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.wire import read_uvint
from tests.oracles.cassandra_read_path import read
from tests.unit.sources.cassandra.commit_logs import EPOCH_S, EPOCH_US, HEADER_BYTES, UpdateWriter
from tests.unit.sources.cassandra.decoded_changes import changes
from tests.unit.sources.cassandra.recordings import recording
from tests.unit.sources.cassandra.updates import TABLES

_LONGEST_SECTION: Final = 1 << 16
"""Few bytes can honestly be the form of many zeros, and a kernel in plain Python takes long over them."""

NUMBER: Final = 1795247392876
"""Id of the segments that are read."""

SEALED, COMPLETED, BEYOND_INDEX, TRUST_ZERO, PACKED = 1, 2, 4, 8, 16
"""Options of `segment`."""

_CODES: Final = {name for name, _ in CODES.values()}
_DELETION: Final = (EPOCH_US + 5, EPOCH_S + 5)


def run(data: bytes) -> None:
    """Give an input to its target.

    Raises:
        AssertionError: A promise is broken, or any other error but those that a part expects.
    """
    if not data:
        return
    with patch.object(sections, "_LONGEST_SECTION", _LONGEST_SECTION):
        PARTS[data[0] % len(PARTS)](data[1:])


def seeds() -> Iterator[bytes]:
    """Yield updates, mutations and segments of recorded nodes."""
    from tools.fuzz.targets import cassandra_seeds

    return cassandra_seeds.seeds()


def segment(data: bytes) -> None:
    """Read a segment: valid entries are captured or counted, all else is quarantined with a reason."""
    if len(data) < 2:
        return
    options, text, content = data[0], data[2 : 2 + data[1]], data[2 + data[1] :]
    if options & SEALED:
        content = seal(content)
    version = int.from_bytes(content[:4], "big") if len(content) > 4 else 7
    version = version if 0 <= version < 100 else 7
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        packed = bool(options & PACKED)
        path = Path(folder, f"CommitLog-{version}-{NUMBER}.log{'.gz' if packed else ''}")
        path.write_bytes(gzip.compress(content, 1) if packed else content)
        if options & COMPLETED or text:
            text = text or f"{len(content)}\nCOMPLETED".encode()
            path.with_name(f"CommitLog-{version}-{NUMBER}_cdc.idx").write_bytes(text)
        log = LogFolder(
            folder,
            "host",
            beyond_index=bool(options & BEYOND_INDEX),
            recorded=packed,
            trust_zero_checksum=bool(options & TRUST_ZERO),
            keys=_keys(),
        )
        with suppress(CdcError):
            _read_folder(log, len(content))


def _read_folder(log: LogFolder, length: int) -> None:
    lag(log, None)
    stop = head(log)
    offset, batches, counts = None, [], ReadCounts()
    for _ in range(1000):
        plan = plan_segments(log, offset, stop, ReadLimit(bytes=4096))
        for part in plan.partitions:
            batches += list(read_segments(part, _tables(), counts, keys=log.keys))
        offset = plan.end
        if plan.at_head:
            break
    else:
        raise AssertionError("reading never ends")
    _check_records(batches, counts, length)


def _check_records(batches: Sequence[pa.RecordBatch], counts: ReadCounts, length: int) -> None:
    kinds: dict[str, int] = {}
    held = 0
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == CHANGE_SCHEMA
        assert not batch.column("position").null_count
        held += batch.nbytes
        for kind, reason in zip(*(batch.column(n).to_pylist() for n in ("kind", "reason")), strict=True):
            kinds[kind] = kinds.get(kind, 0) + 1
            assert kind != QUARANTINE or reason.split(":")[0] in _CODES
    assert kinds.get(CHANGE, 0) == counts.changes
    assert kinds.get(SCHEMA, 0) == counts.schema_changes
    assert kinds.get(TRUNCATE, 0) == counts.truncations
    assert kinds.get(QUARANTINE, 0) == counts.quarantined + counts.damaged
    accounted = counts.changes + sum(counts.skipped.values()) + counts.schema_changes + counts.quarantined
    assert accounted >= counts.entries, "an entry is lost"
    assert held <= 400 * length + (1 << 20), "much comes out of little"


def update(data: bytes) -> None:
    """Decode a payload: it is decoded or rejected with a reason, and its neighbors don't change."""
    if not data:
        return
    codec, sound = _codecs()[data[0] % len(_codecs())]
    payload = data[1:]
    batch = changes([sound, payload, sound], [_key(p) for p in (sound, payload, sound)], generation=[0, 1, 2])
    result = codec.decode(batch, ())
    assert set(result.undecodable) <= {1}
    assert len(result.reasons) == len(result.undecodable)
    assert all(reason.split(":")[0] in _CODES for reason in result.reasons)
    found = result.contributions
    found.validate(full=True)
    # Of a counter only its key comes out.
    found = found.filter(pa.compute.not_equal(found["scope"], UNRESOLVED))
    origins = found["generation"].to_pylist()
    assert not result.undecodable or 1 not in origins
    states = found["state"].to_pylist()
    assert [s for s, o in zip(states, origins, strict=True) if o == 0] == [
        s for s, o in zip(states, origins, strict=True) if o == 2
    ]
    for state in states:
        positions = [cell.place for cell in read(state).cells]
        assert positions == sorted(set(positions))
    assert found.nbytes <= 100 * len(payload) + (1 << 16), "much comes out of little"
    rows = found.filter(pa.compute.equal(found["scope"], 0))
    live = _live(rows)
    with suppress(CorruptInput, ConfigurationError):
        assert codec.project(live).num_rows == live.num_rows
    with suppress(CorruptInput, ConfigurationError):
        assert len(list(codec.to_json(live))) == live.num_rows


def mutation(data: bytes) -> None:
    """Read a quarantined mutation again: its updates are captured, or the rest is quarantined again."""
    if len(data) < 2:
        return
    version, ordinal = (6, 7, 8)[data[0] % 3], data[1] % 8
    row = {
        "kind": QUARANTINE,
        "origin": "host",
        "position": Position(NUMBER, 4711, ordinal).pack(),
        "generation": 0,
        "payload": mutation_payload(version, ordinal, data[2:]),
    }
    batches = list(retry_quarantined(pa.RecordBatch.from_pylist([row], schema=CHANGE_SCHEMA), _tables()))
    for batch in batches:
        batch.validate(full=True)
        for line in batch.to_pylist():
            place = Position.unpack(line["position"])
            assert line["kind"] == TRUNCATE or (place.segment, place.end) == (NUMBER, 4711)
    positions = [p for b in batches for p in b.column("position").to_pylist()]
    assert len(set(positions)) == len(positions)


def system(data: bytes) -> None:
    """Replay a history: what can't be read is left out, what comes out can be compiled and used."""
    seen = bytes([OBSERVED_TAG])
    payloads = [seen + zlib.compress(p[1:], 1) if p[:1] == seen else p for p in _chunks(data)]
    read_local_updates(payloads)
    by_id = {table.id: table.full_name for table in system_tables()}
    records = []
    for number, payload in enumerate(payloads):
        name = by_id.get(payload[1:17].hex(), "system_schema.tables")
        records.append(
            {
                "source_table": name if payload[:1] and payload[0] in VERSIONS else None,
                "kind": SCHEMA,
                "origin": "host",
                "position": Position(1, number + 1).pack(),
                "generation": 0,
                "key": b"shop",
                "committed_at": number,
                "payload": payload,
            }
        )
    history = read_history(pa.Table.from_pylist(records, schema=CHANGE_SCHEMA))
    with suppress(CdcError):
        tables = log_tables(
            history.existing.values(), set(history.existing), history.by_id.values(), history.by_id
        )
        assert set(history.by_id) <= set(tables.ids)


def keystore(data: bytes) -> None:
    """Read a keystore whose digest is right."""
    body = data[:-20]
    digest = hashlib.sha1("cassandra".encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        path = Path(folder, "keystore.jceks")
        path.write_bytes(body + digest.digest())
        with suppress(ConfigurationError):
            read_secret_keys(str(path), "cassandra", "cassandra")


PARTS: Final[tuple[Callable[[bytes], None], ...]] = (segment, update, mutation, system, keystore)


def seal(data: bytes) -> bytes:
    """Set the checksums right of header, markers and, in a plain segment, entries, as far as they lead."""
    out = bytearray(data)
    if len(out) < HEADER_BYTES - 2:
        return data
    out[4:12] = struct.pack(">q", NUMBER)
    length = int.from_bytes(out[12:14], "big")
    at = 14 + length + 4
    if at > len(out):
        return bytes(out)
    low, high = NUMBER & 0xFFFFFFFF, NUMBER >> 32
    words = bytes(out[:4]) + struct.pack(">IIi", low, high, length)
    struct.pack_into(">I", out, at - 4, zlib.crc32(bytes(out[14 : at - 4]), zlib.crc32(words)))
    plain = length < 3
    while at + 8 <= len(out):
        stop = int.from_bytes(out[at : at + 4], "big")
        if stop == 0:
            break
        struct.pack_into(">I", out, at + 4, zlib.crc32(struct.pack(">III", low, high, at)))
        if not at + 8 <= stop <= len(out):
            break
        if plain:
            _seal_entries(out, at + 8, stop)
        at = stop
    return bytes(out)


def _seal_entries(out: bytearray, at: int, stop: int) -> None:
    while at + 12 <= stop:
        size = int.from_bytes(out[at : at + 4], "big")
        end = at + 8 + size
        if size == 0 or end + 4 > stop:
            return
        crc = zlib.crc32(out[at : at + 4])
        struct.pack_into(">I", out, at + 4, crc)
        struct.pack_into(">I", out, end, zlib.crc32(out[at + 8 : end], crc))
        at = end + 4


def _chunks(data: bytes) -> Iterator[bytes]:
    """Yield values with a length prefix of two bytes."""
    at = 0
    while at + 2 <= len(data):
        length = int.from_bytes(data[at : at + 2], "big")
        yield data[at + 2 : at + 2 + length]
        at += 2 + length


@cache
def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  # a private folder in it


@cache
def _keys() -> Keys | None:
    return recording("v7-encrypted").keys


@cache
def _tables() -> LogTables:
    schemas = table_schemas()
    return log_tables(schemas, {schema.full_name for schema in schemas})


def table_schemas() -> list[TableSchema]:
    """List the tables of `update`, in the order of its first byte."""
    return [*recording("v7-plain").schemas.tables.values(), *TABLES]


@cache
def _codecs() -> list[tuple[CassandraCodec, bytes]]:
    """Return each table's codec, and a sound payload: the deletion of a partition."""
    return [
        (CassandraCodec(schema), b"\x07" + UpdateWriter(schema).write(b"key", partition_deletion=_DELETION))
        for schema in table_schemas()
    ]


def _key(payload: bytes) -> bytes:
    """Return the partition key that an update names, as its reader does."""
    length, at = read_uvint(np.frombuffer(payload, np.uint8), 17, len(payload))
    return payload[at : at + length] if at > 0 else b""


def _live(contributions: pa.RecordBatch) -> pa.RecordBatch:
    """Return contributions of rows as live rows."""
    count = contributions.num_rows
    return pa.RecordBatch.from_arrays(
        [
            contributions.column(field.name)
            if field.name in contributions.schema.names
            else pa.nulls(count, field.type)
            for field in LIVE_ROW_SCHEMA
        ],
        schema=LIVE_ROW_SCHEMA,
    )
