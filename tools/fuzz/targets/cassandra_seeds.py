"""Seeds of a fuzzer: real updates, mutations and segments of recorded nodes, truncated."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE, SCHEMA
from airflow_cdc_provider.sources.cassandra.commit_log.framing import LENGTH, START, find_entries
from airflow_cdc_provider.sources.cassandra.commit_log.system_tables import LOCAL_TABLE, system_table
from airflow_cdc_provider.sources.cql.snapshot_payload import snapshot_prefix
from tests.oracles.cassandra_read_path import Liveness, Row, write
from tests.unit.sources.cassandra.commit_logs import segment
from tests.unit.sources.cassandra.encrypted_segments import IV, KEYSTORE, encrypt
from tests.unit.sources.cassandra.keystores import MANY
from tests.unit.sources.cassandra.recordings import of_kind, read_all, recording
from tools.fuzz.targets.cassandra import (
    BEYOND_INDEX,
    COMPLETED,
    NUMBER,
    PACKED,
    PARTS,
    SEALED,
    TRUST_ZERO,
    table_schemas,
)

_NAMES = [target.__name__ for target in PARTS]
_PER_TABLE = 12
_SEEN = (
    b'O{"tables":[{"keyspace_name":"shop","table_name":"t","id":"5a1c395e-b41f-11e5-9f22-ba0be0483c18",'
    b'"flags":["compound"],"cdc":true}],"views":[],"columns":[{"keyspace_name":"shop","table_name":"t",'
    b'"column_name":"k","kind":"partition_key","position":0,"type":"int","clustering_order":"none"},'
    b'{"keyspace_name":"shop","table_name":"t","column_name":"v","kind":"regular","position":-1,'
    b'"type":"frozen<pair>","clustering_order":"none"}],"dropped_columns":[{"keyspace_name":"shop",'
    b'"table_name":"t","column_name":"w","kind":"regular","type":"int","dropped_time":5}],'
    b'"types":[{"keyspace_name":"shop","type_name":"pair","field_names":["x"],"field_types":["int"]}]}'
)
_COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "LZ4Compressor": lambda plain: struct.pack("<i", len(plain)) + _packed("lz4_raw", plain),
    "SnappyCompressor": lambda plain: _packed("snappy", plain),
    "ZstdCompressor": lambda plain: _packed("zstd", plain),
    "NoopCompressor": bytes,
}


def seeds() -> Iterator[bytes]:
    """Yield inputs of all parts."""
    rng = random.Random(1)
    mutations = [m for m in _mutations() if len(m) < 1000]
    rng.shuffle(mutations)
    yield from _updates(rng)
    yield from (_of("mutation", bytes([1, 0]) + m) for m in mutations[:300])
    yield from _segments(mutations)
    yield from _system(rng)
    for path in (MANY, KEYSTORE):
        with open(path, "rb") as file:
            # One round of the password instead of many: nothing but time is lost.
            yield _of("keystore", file.read().replace(b"\x02\x03\x03\x0d\x40", b"\x02\x03\0\0\1"))


def _of(target: str, data: bytes) -> bytes:
    return bytes([_NAMES.index(target)]) + data


def _updates(rng: random.Random) -> Iterator[bytes]:
    numbers = {schema.full_name: number for number, schema in enumerate(table_schemas())}
    for variant in ("v7-plain", "v8-plain"):
        full = recording(variant)
        records = of_kind(read_all(full.log, full.tables())[0], CHANGE)
        for name, schema in full.schemas.tables.items():
            if name not in numbers:
                continue
            mine = records.filter(pa.compute.equal(records["source_table"], name))["payload"].to_pylist()
            short = [payload for payload in mine if len(payload) < 1500]
            # Of both recordings tables have their own ids.
            own = bytes.fromhex(table_schemas()[numbers[name]].id)
            for payload in rng.sample(short, min(len(short), _PER_TABLE)):
                yield _of("update", bytes([numbers[name]]) + payload[:1] + own + payload[17:])
            native = b"\0\0\0\0" * len(schema.clustering)
            row = snapshot_prefix([c.name for c in schema.regular]) + write(Row(Liveness(5), (6, 7), native))
            yield _of("update", bytes([numbers[name]]) + row)


def _mutations() -> Iterator[bytes]:
    for data in recording("v7-plain").segment_bytes().values():
        plain = np.frombuffer(data, np.uint8)
        at = 20
        while at + 8 <= len(data):
            stop = int.from_bytes(data[at : at + 4], "big")
            if not at + 8 <= stop <= len(data):
                break
            one = np.array([at + 8]), np.array([stop]), np.array([at + 8])
            for line in find_entries(plain, *one).entries:
                yield data[line[START] : line[START] + line[LENGTH]]
            at = stop


def _segments(mutations: list[bytes]) -> Iterator[bytes]:
    short = sorted((m for m in mutations), key=len)[:40]
    sections = [short[:3], [], short[3:6], short[6:7]]
    for version in (6, 7, 8):
        data = segment(NUMBER, sections, version=version, size=1000)
        for options in (COMPLETED, 0, BEYOND_INDEX, BEYOND_INDEX | TRUST_ZERO, COMPLETED | PACKED):
            yield _of("segment", bytes([options | SEALED, 0]) + data)
    yield _of("segment", bytes([SEALED, 3]) + b"300" + data)
    yield _of("segment", bytes([0, 13]) + b"300\nCOMPLETED" + data)
    for name, compress in _COMPRESSORS.items():
        parameters = {"compressionClass": name, "compressionParameters": None}
        data = segment(NUMBER, sections, parameters=parameters, compress=compress)
        yield _of("segment", bytes([SEALED | COMPLETED, 0]) + data)
        yield _of("segment", bytes([SEALED | BEYOND_INDEX, 0]) + data)
    parameters = {"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": "cdc:1", "encIV": IV.hex()}
    (key,) = recording("v7-encrypted").keys.opened.values()  # type: ignore[union-attr]
    data = segment(NUMBER, sections, parameters=parameters, compress=lambda plain: encrypt(plain, key=key))
    yield _of("segment", bytes([SEALED | COMPLETED, 0]) + data)


def _system(rng: random.Random) -> Iterator[bytes]:
    full = recording("v7-plain")
    records = of_kind(read_all(full.log, full.tables())[0], SCHEMA)["payload"].to_pylist()
    short = [payload for payload in records if len(payload) < 1800]
    for _ in range(60):
        first = rng.randrange(len(short))
        yield _of("system", _joined(short[first : first + rng.randrange(1, 4)]))
    yield _of("system", _joined([_SEEN, *short[:2]]))
    local = bytes.fromhex(system_table(LOCAL_TABLE).id)
    for mutation in _mutations():
        if mutation[1:17] == local and len(mutation) < 1500:
            yield _of("system", _joined([b"\x07" + mutation[1:]]))


def _joined(payloads: list[bytes]) -> bytes:
    return b"".join(struct.pack(">H", len(payload)) + payload for payload in payloads)


def _packed(codec: str, plain: bytes) -> bytes:
    return bytes(pa.Codec(codec).compress(plain, asbytes=True))
