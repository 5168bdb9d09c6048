"""Damages real bytes at random and looks whether readers stay within them.

Run as a program it does so for some seconds; with ``NUMBA_BOUNDSCHECK=1`` kernels check each access::

    NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(mktemp -d) python -m tests.unit.sources.cassandra.fuzzing 60
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.capture import LogFolder
from airflow_cdc_provider.sources.cassandra.decoding.decode import UpdateDecoder
from airflow_cdc_provider.sources.cql.reasons import CODES
from airflow_cdc_provider.sources.cql.snapshot_payload import snapshot_prefix
from tests.oracles.cassandra_read_path import Liveness, Row, read, write
from tests.unit.sources.cassandra.commit_logs import put_segment
from tests.unit.sources.cassandra.decoded_changes import changes
from tests.unit.sources.cassandra.recordings import of_kind, read_all, recording

PER_BATCH = 200
_CODES = {name for name, _ in CODES.values()}


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Flip, overwrite, remove, repeat or insert a few bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))
            case 2:
                del out[at : at + rng.randrange(1, 9)]
            case 3:
                out[at:at] = bytes(
                    rng.choice((0, 0xFF, rng.randrange(256))) for _ in range(rng.randrange(1, 10))
                )
            case 4:
                del out[at:]
            case _:
                out[at:at] = out[at : at + rng.randrange(1, 40)]
    return bytes(out)


def table_batches(seed: int) -> Iterator[tuple[UpdateDecoder, list[bytes]]]:
    """Yield each table's decoder with corrupt payloads of its changes, endlessly."""
    rng = random.Random(seed)
    tables = []
    for variant in ("v7-plain", "v8-plain"):
        full = recording(variant)
        found = of_kind(read_all(full.log, full.tables())[0], CHANGE)
        for name, schema in full.schemas.tables.items():
            mine = found.filter(pa.compute.equal(found["source_table"], name))["payload"].to_pylist()
            short = [payload for payload in mine if len(payload) < 20_000]
            prefix = snapshot_prefix([c.name for c in schema.regular])
            native = b"\0\0\0\0" * len(schema.clustering)
            short.append(prefix + write(Row(Liveness(5), (6, 7), native)))
            tables.append((UpdateDecoder(schema), short))
    while True:
        decoder, payloads = rng.choice(tables)
        yield decoder, [damaged(rng.choice(payloads), rng) for _ in range(PER_BATCH)]


def check_decoding(decoder: UpdateDecoder, payloads: list[bytes]) -> int:
    """Decode corrupt payloads and check the results; return how many were rejected."""
    result = decoder.decode(changes(payloads, generation=list(range(len(payloads)))), ())
    assert len(result.reasons) == len(result.undecodable) == len(set(result.undecodable))
    for reason in result.reasons:
        assert reason.split(":")[0] in _CODES
    assert not set(result.undecodable) & set(result.contributions["generation"].to_pylist())
    result.contributions.validate(full=True)
    for state in result.contributions["state"].to_pylist():
        row = read(state)
        places = [cell.place for cell in row.cells]
        assert places == sorted(set(places))
    return len(result.undecodable)


def check_segments(seed: int, rounds: int) -> None:
    """Read corrupt segments: each yields changes, or a located reason."""
    rng = random.Random(seed)
    for variant, segment in (("v7-plain", 1795247392876), ("v7-encrypted", 1795247901843)):
        full = recording(variant)
        tables, keys = full.tables(), full.keys
        sound = full.segment_bytes()[segment][:42_000]
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(rounds):
                put_segment(Path(folder), segment, damaged(sound, rng))
                try:
                    records, _ = read_all(LogFolder(folder, "host", keys=keys, recorded=True), tables)
                except ConfigurationError:
                    # No block was left sound by which a key can be tried, so the key is blamed.
                    assert keys is not None
                    continue
                assert records.num_rows > 0


def main(seconds: float) -> None:
    """Damage and read for a while."""
    seed = int(time.time())
    until = time.monotonic() + seconds
    refused = total = 0
    for decoder, payloads in table_batches(seed):
        refused += check_decoding(decoder, payloads)
        total += len(payloads)
        if time.monotonic() > until:
            break
    check_segments(seed, 200)
    sys.stdout.write(f"seed {seed}: {total} damaged payloads, {refused} refused\n")


if __name__ == "__main__":
    main(float(sys.argv[1]))
