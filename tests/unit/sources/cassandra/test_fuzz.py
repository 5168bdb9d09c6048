"""Corrupt input: never a crash, never a read out of bounds, always a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.cassandra.decoding.decode import UpdateDecoder
from tests.unit.sources.cassandra.fuzzing import check_decoding, check_segments, table_batches
from tests.unit.sources.cassandra.updates import PLAIN, RICH

ROOT = Path(__file__).resolve().parents[4]


def test_corrupt_payloads_are_decoded_or_rejected_with_a_reason() -> None:
    refused = [check_decoding(*batch) for batch in islice(table_batches(seed=1), 40)]
    assert sum(refused) > 1000


def test_corrupt_segments_are_read_as_far_as_possible() -> None:
    check_segments(seed=2, rounds=60)


@given(st.lists(st.binary(max_size=80), max_size=5), st.sampled_from((6, 7, 8, ord("S"))))
def test_any_bytes_are_decoded_or_rejected(payloads: list[bytes], tag: int) -> None:
    for schema in (PLAIN, RICH):
        named = [bytes([tag]) + bytes.fromhex(schema.id) + payload for payload in payloads]
        check_decoding(UpdateDecoder(schema), [*payloads, *named])


@pytest.mark.long
def test_kernels_stay_inside_their_arrays(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.sources.cassandra.fuzzing", "60"],
        cwd=ROOT,
        env={
            **os.environ,
            "NUMBA_BOUNDSCHECK": "1",
            "NUMBA_CACHE_DIR": str(tmp_path),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "damaged payloads" in done.stdout
