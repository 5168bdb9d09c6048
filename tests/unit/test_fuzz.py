"""The inputs that the fuzzer found worth keeping keep all promises, with kernels of both kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.fuzz.bounds import judge
from tools.fuzz.choices import Choices, chunk
from tools.fuzz.targets import NAMES, corpus, load

ROOT = Path(__file__).resolve().parents[2]
EACH = 8
"""Inputs of a target that run with uncompiled kernels; the fuzzer runs all of them so."""


@pytest.mark.parametrize("name", NAMES)
def test_a_target_keeps_its_promises_on_its_corpus(name: str) -> None:
    found = corpus(name)
    assert len(found) > EACH
    target = load(name)
    for data in found:
        judge(target.run, data)


def test_kernels_stay_inside_their_arrays_on_each_corpus() -> None:
    done = _plain(
        "from tools.fuzz.targets import NAMES, corpus, load\n"
        f"for name in NAMES:\n  for data in corpus(name)[::-1][:{EACH}]: load(name).run(data)\nprint('all')\n"
        "from airflow_cdc_provider.sources.cql.wire import read_i32; import numpy as np\n"
        "print(read_i32(np.zeros(4, np.uint8), 0)); read_i32(np.zeros(4, np.uint8), -1)"
    )
    assert done.stdout.endswith("all\n0\n"), done.stderr[-3000:]
    assert "OutsideArray" in done.stderr.splitlines()[-1], (
        "an access outside an array is an error in this process"
    )


def test_choices_are_those_that_were_written_and_end_with_the_bytes() -> None:
    choices = Choices(chunk(b"a" * 300) + chunk(b"") + b"\x05")
    assert (choices.chunk(), choices.chunk(), choices.one_of("abc"), choices.left) == (
        b"a" * 300,
        b"",
        "c",
        0,
    )
    assert (choices.byte(), choices.text(), choices.integer(64), choices.some(3, int)) == (0, "", -0x60, [])
    assert choices.damaged(b"whole") == b"whole"


def _plain(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program whose kernels are plain Python."""
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            f"from tests.plain_kernels import use_plain_kernels; use_plain_kernels()\n{program}",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
