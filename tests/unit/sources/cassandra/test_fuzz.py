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
from tests.unit.sources.cassandra import fuzz_targets
from tests.unit.sources.cassandra.fuzzing import check_decoding, check_segments, table_batches
from tests.unit.sources.cassandra.updates import PLAIN, RICH

ROOT = Path(__file__).resolve().parents[4]
CORPUS = ROOT / "tests" / "fixtures" / "cassandra" / "fuzz"


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


def test_fuzzer_findings_are_decoded_or_rejected_with_a_reason() -> None:
    found = sorted(CORPUS.glob("*"))
    assert len(found) > 200
    for path in found:
        fuzz_targets.run(path.read_bytes())


def test_uncompiled_kernels_raise_on_an_access_outside_an_array() -> None:
    done = _plain(
        "from airflow_cdc_provider.sources.cql.wire import read_i32; import numpy as np;"
        "print(read_i32(np.zeros(4, np.uint8), 0)); read_i32(np.zeros(4, np.uint8), -1)"
    )
    assert done.stdout == "0\n"
    assert "OutsideArray" in done.stderr


def test_kernels_stay_inside_their_arrays_on_fuzzer_findings() -> None:
    done = _plain(
        "from tests.unit.sources.cassandra import fuzz_targets; from pathlib import Path; import sys;"
        "[fuzz_targets.run(path.read_bytes()) for path in sorted(Path(sys.argv[1]).glob('*'))]; print('all')"
    )
    assert done.stdout == "all\n", done.stderr[-3000:]


def _plain(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program whose kernels are plain Python."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"from tests.plain_kernels import use_plain_kernels; use_plain_kernels(); {program}",
            str(CORPUS),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


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
