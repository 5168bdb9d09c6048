"""Fuzz readers of bytes from outside, led by coverage (Atheris), and keep what it finds.

Usage::

    make fuzz TARGET=bson FUZZ_SECONDS=3600
    make fuzz                                         # all targets one after another, ten minutes in total
    python -m tools.fuzz --target bson --minimise     # put what .fuzz has found into the tests' corpus

Targets are the modules of :mod:`.targets`. They call what jobs call with bytes of a source or a topic. Faults
are an error that the caller doesn't handle, an access outside an array, more CPU time or memory than
:mod:`.bounds` allows, and a result that differs from that of another library.

Kernels run as the plain Python that they are written in (``tests/plain_kernels.py``), so that coverage leads
into them and an access outside an array is an error. A run begins with the tests' corpus and the seeds, keeps
its own corpus in ``.fuzz/<target>/corpus`` and each input that broke a promise in
``.fuzz/<target>/found``, once per kind, and goes on. It fails if there is any. ``.fuzz/<target>/log`` has the
number of inputs.

Atheris comes from PyPI by its hash (``tools/pinned.lock``).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import logging
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from tools.fuzz.bounds import judge
from tools.fuzz.targets import CORPORA, NAMES, Target, corpus, load
from tools.pinned import installed

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 4096
_ROUND_SECONDS = 900
"""How long a process fuzzes: Atheris itself grows by some 16 KiB with each input. The next one resumes with
its corpus."""
_MEMORY_MIB = 8000


def main() -> None:
    """Run the requested job."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("", *NAMES), default="", help="all by default")
    parser.add_argument("--seconds", type=int, default=600, help="how long to fuzz all targets together")
    parser.add_argument("--minimise", action="store_true", help="renew the tests' corpus")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = [arguments.target] if arguments.target else NAMES
    if arguments.inside:
        _fuzz(arguments.target, arguments.seconds)
    elif arguments.minimise:
        for name in names:
            _minimise(name)
    else:
        found = [fault for name in names for fault in _start(name, arguments.seconds // len(names))]
        print("\n".join(found) or "no faults")
        sys.exit(1 if found else 0)


def _work(name: str, part: str) -> Path:
    folder = ROOT / ".fuzz" / name / part
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _start(name: str, seconds: int) -> list[str]:
    """Fuzz a target in one process after another; return a line for each fault."""
    for seed in (*load(name).seeds(), *corpus(name)):  # with compiled kernels, which are fast
        if len(seed) <= LONGEST:
            _keep(_work(name, "seeds"), seed)
    print(f"{name}: {seconds} s, log in .fuzz/{name}/log", flush=True)
    rounds = [min(_ROUND_SECONDS, seconds - past) for past in range(0, seconds, _ROUND_SECONDS)]
    failed = [line for length in rounds for line in _round(name, length)]
    found = [p for p in sorted(_work(name, "found").iterdir()) if p.suffix != ".txt"]
    return [f"{path}: {_last_line(path)}" for path in found] or failed


def _round(name: str, seconds: int) -> list[str]:
    """Fuzz in one process; return a line if it fails."""
    log = _work(name, "").parent / name / "log"
    with log.open("ab") as output:
        done = subprocess.run(
            [sys.executable, "-m", "tools.fuzz", "--inside", "--target", name, "--seconds", str(seconds)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{installed()}"},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    lines = log.read_text(errors="replace").splitlines()
    print("\n".join(line for line in lines[-5:] if line.startswith("Done ")), flush=True)
    return [f"{name}: the fuzzer failed: {lines[-1:]}"] if done.returncode else []


def _last_line(path: Path) -> str:
    report = path.with_name(f"{path.name}.txt")
    return report.read_text().splitlines()[-1] if report.is_file() else "the process ended"


def _fuzz(name: str, seconds: int) -> None:
    """Fuzz until the time is over; libFuzzer then ends the process."""
    import atheris

    with atheris.instrument_imports(include=["airflow_cdc_provider"]):
        target = _plain(name)
    seen: set[str] = set()

    def one_input(data: bytes) -> None:
        try:
            judge(target.run, data)
        except Exception as error:  # noqa: BLE001  # the input is stored, and fuzzing continues
            kind = _kind(error)
            if kind not in seen:
                seen.add(kind)
                path = _keep(_work(name, "found"), data)
                path.with_name(f"{path.name}.txt").write_text(traceback.format_exc())
                print(f"found {path}: {error!r}", flush=True)

    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={seconds}",
            f"-max_len={LONGEST}",
            "-timeout=300",
            "-report_slow_units=300",  # of the wall clock; a target judges by CPU time
            f"-rss_limit_mb={_MEMORY_MIB}",
            "-use_value_profile=1",
            f"-artifact_prefix={_work(name, 'found')}/",
            str(_work(name, "corpus")),
            str(_work(name, "seeds")),
        ],
        one_input,
        internal_libfuzzer=True,
    )
    atheris.Fuzz()


def _minimise(name: str) -> None:
    """Write to the tests' corpus the shortest inputs that reach every line pair that any input reaches."""
    target = _plain(name)
    paths = [path for part in ("corpus", "seeds") for path in _work(name, part).iterdir()]
    given = {*corpus(name), *(path.read_bytes() for path in paths)}
    reached: set[Any] = set()
    kept = []
    for data in sorted(given, key=lambda d: (len(d), d)):
        new = _reached(target, data) - reached
        if new:
            reached |= new
            kept.append(data)
    lines = b"".join(base64.b64encode(data) + b"\n" for data in kept)
    (CORPORA / f"{name}.txt").write_bytes(lines)
    print(f"{name}: {len(kept)} of {len(given)} inputs, {len(lines)} bytes, {len(reached)} pairs of lines")


def _reached(target: Target, data: bytes) -> set[tuple[str, int, int]]:
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
        target.run(data)
    finally:
        sys.settrace(None)
    return pairs


def _plain(name: str) -> Target:
    """Import a target, with everything that it imports, kernels as plain Python."""
    from tests.plain_kernels import use_plain_kernels

    use_plain_kernels()
    warnings.simplefilter("ignore")
    target = load(name)
    logging.disable()
    return target


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
