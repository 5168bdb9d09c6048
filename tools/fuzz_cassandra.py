"""Fuzz what reads Cassandra's segments, led by coverage (Atheris), and keep what it finds.

Usage::

    make fuzz                                    # ten minutes
    make fuzz FUZZ_SECONDS=3600
    python -m tools.fuzz_cassandra --minimise    # put what .fuzz has found into the tests' corpus

Kernels run as the plain Python that they are written in (``tests/plain_kernels.py``), so that coverage leads
into them and an access outside an array is an error. Targets and what they look at are those of
``tests/unit/sources/cassandra/fuzz_targets.py``. The run begins with the tests' corpus and with what real
nodes wrote (``tests/fixtures/cassandra``), keeps its own corpus in ``.fuzz/corpus`` and each input that broke
a promise in ``.fuzz/found``, once per kind, and goes on. It fails if there is any.

Atheris comes from PyPI into an environment of its own, on top of the present one.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".fuzz"
CORPUS = ROOT / "tests" / "fixtures" / "cassandra" / "fuzz"
LOCK = ROOT / "tools/fuzz.lock"
LONGEST = 4096
_LONGEST_SECTION = 1 << 16
"""Few bytes can honestly be the form of many zeros, and a kernel in plain Python takes long over them."""


def main() -> None:
    """Run the requested job."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=600, help="how long to fuzz")
    parser.add_argument("--minimise", action="store_true", help="renew the tests' corpus")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        _fuzz(arguments.seconds)
    elif arguments.minimise:
        _minimise()
    else:
        sys.exit(_start(arguments.seconds))


def _start(seconds: int) -> int:
    """Run the fuzzer in its environment; return 1 if it found anything."""
    from tests.unit.sources.cassandra.fuzz_seeds import seeds  # with compiled kernels, which are fast

    for folder in ("corpus", "found", "seeds"):
        (WORK / folder).mkdir(parents=True, exist_ok=True)
    for seed in seeds():
        if len(seed) <= LONGEST:
            _keep(WORK / "seeds", seed)
    packages = WORK / "packages"
    install = [sys.executable, "-m", "uv", "pip", "install", "-q", "--require-hashes", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(packages), "-r", str(LOCK)], check=True)
    subprocess.run(
        [sys.executable, "-m", "tools.fuzz_cassandra", "--inside", "--seconds", str(seconds)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{packages}"},
        check=True,
    )
    found = sorted((WORK / "found").glob("*.txt"))
    for path in found:
        print(f"{path.with_suffix('')}: {path.read_text().splitlines()[-1]}")
    return 1 if found else 0


def _fuzz(seconds: int) -> None:
    """Fuzz until the time is over; libFuzzer then ends the process."""
    import atheris

    with atheris.instrument_imports(include=["airflow_cdc_provider"]):
        targets = _targets()
    from airflow_cdc_provider.sources.cassandra.commit_log import sections

    sections._LONGEST_SECTION = _LONGEST_SECTION  # type: ignore[misc]
    logging.disable()
    seen: set[str] = set()

    def one_input(data: bytes) -> None:
        try:
            targets.run(data)
        except Exception as error:  # noqa: BLE001  # the input is stored, and fuzzing continues
            kind = _kind(error)
            if kind not in seen:
                seen.add(kind)
                path = _keep(WORK / "found", data)
                path.with_name(f"{path.name}.txt").write_text(traceback.format_exc())
                print(f"found {path}: {error!r}", flush=True)

    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={seconds}",
            f"-max_len={LONGEST}",
            "-timeout=300",
            "-rss_limit_mb=3000",
            "-use_value_profile=1",
            f"-artifact_prefix={WORK / 'found'}/",
            str(WORK / "corpus"),
            str(WORK / "seeds"),
            str(CORPUS),
        ],
        one_input,
        internal_libfuzzer=True,
    )
    atheris.Fuzz()


def _minimise() -> None:
    """Write to the tests' corpus the shortest inputs that reach every line pair that any input reaches."""
    targets = _targets()
    logging.disable()
    paths = [p for folder in (CORPUS, WORK / "corpus", WORK / "seeds") for p in folder.glob("*")]
    reached: set[Any] = set()
    kept = []
    for data in sorted({path.read_bytes() for path in paths}, key=lambda d: (len(d), d)):
        new = _reached(targets, data) - reached
        if new:
            reached |= new
            kept.append(data)
    for path in CORPUS.glob("*"):
        path.unlink()
    for data in kept:
        _keep(CORPUS, data)
    print(f"{len(kept)} of {len(paths)} inputs, {sum(map(len, kept))} bytes, {len(reached)} pairs of lines")


def _reached(targets: Any, data: bytes) -> set[tuple[str, int, int]]:
    """Run an input and return which lines of the package came after which."""
    pairs: set[tuple[str, int, int]] = set()
    last: dict[int, int] = {}

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            pairs.add((frame.f_code.co_filename, last.get(id(frame), 0), frame.f_lineno))
            last[id(frame)] = frame.f_lineno
        return line

    def call(frame: FrameType, _: str, __: Any) -> Any:
        last[id(frame)] = 0
        return line if "airflow_cdc_provider" in frame.f_code.co_filename else None

    sys.settrace(call)
    try:
        targets.run(data)
    finally:
        sys.settrace(None)
    return pairs


def _targets() -> Any:
    """Import the targets, with everything that they import, kernels as plain Python."""
    from tests.plain_kernels import use_plain_kernels

    use_plain_kernels()
    from tests.unit.sources.cassandra import fuzz_targets

    return fuzz_targets


def _keep(folder: Path, data: bytes) -> Path:
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def _kind(error: BaseException) -> str:
    """Distinguish errors by their type and their innermost frames in the package."""
    places = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
    own = [place for place in places if str(ROOT) in place][-2:]
    return " ".join([type(error).__name__, *own])


if __name__ == "__main__":
    main()
