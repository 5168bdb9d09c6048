"""Write docs/features.md: each feature of docs/ledger.yaml, its status, and the tests that prove it.

A test proves the rows that its ``@pytest.mark.covers("ID")`` names. Its other marks say what it reaches:
``integration`` and ``e2e`` a real server, Spark or Airflow, ``recorded`` bytes that a real system wrote;
``make test`` leaves out what is marked ``long``. The status of a row follows from these marks, and
docs/features_notes.yaml adds what they can't say. This program collects tests and runs none.

Usage: ``python tools/features.py [--check]``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
STATUSES: Final = {
    "works": "a test of `make test` reaches a real server, Spark, Airflow, or bytes that one wrote.",
    "long tests": "as *works*, but such tests run in `make test-long` alone.",
    "by recording": "on recorded traffic only, because no such system can run in the tests.",
    "by imitation": "on a stand-in for the server; a model writes ScyllaDB's log tables to Cassandra.",
    "unit tests": "by tests that reach no server and no recording.",
    "not applicable": "the provider neither needs nor offers it; the reason is given.",
    "not yet": "no test proves it: don't rely on it.",
}
NOTES: Final = ("by_recording", "by_imitation", "not_applicable")
REAL: Final = frozenset({"integration", "e2e", "recorded"})
# DSX: what DataStax's own CDC for Cassandra offers beyond Debezium's.
DATABASES: Final = {
    "CAS": "Cassandra",
    "DSX": "Cassandra",
    "SCY": "ScyllaDB",
    "MDB": "MongoDB",
    "VIT": "Vitess",
}
IMITATED: Final = frozenset({"SCY"})
"""Prefixes of rows whose server can't run in the tests: docs/design/scylla.md."""


@dataclass(frozen=True)
class Proof:
    """A test that covers a feature.

    Args:
        test: Its node id, without parameters.
        real: Whether it reaches a real system, or bytes that one wrote.
        long: Whether ``make test`` leaves it out.
    """

    test: str
    real: bool = False
    long: bool = False


class CoverageCollector:
    """A pytest plugin that notes which tests cover which features."""

    def __init__(self) -> None:
        self.proofs: dict[str, list[Proof]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read the marks of all collected tests.

        The parameters of one test count once: those that ``make test`` runs, if there are any.
        """
        found: dict[str, dict[str, Proof]] = defaultdict(dict)
        for item in session.items:
            marks = {mark.name for mark in item.iter_markers()}
            proof = Proof(item.nodeid.split("[")[0], bool(marks & REAL), "long" in marks)
            for mark in item.iter_markers("covers"):
                for feature in mark.args:
                    if proof.test not in found[feature] or not proof.long:
                        found[feature][proof.test] = proof
        self.proofs = {feature: list(proofs.values()) for feature, proofs in found.items()}


def collect() -> Mapping[str, Sequence[Proof]]:
    """Return the proofs of each feature.

    Raises:
        SystemExit: pytest could not collect the tests; its output is shown.
    """
    collector = CoverageCollector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-q", "--rootdir", str(ROOT), str(ROOT / "tests")], [collector])
    if code != pytest.ExitCode.OK:
        sys.exit(f"{output.getvalue()}\npytest could not collect the tests")
    return collector.proofs


def status(feature: str, proofs: Sequence[Proof], note: Mapping[str, str]) -> tuple[str, str]:
    """Return a feature's status, and the reason that its note gives.

    Args:
        feature: Its id.
        proofs: The tests that cover it.
        note: Its entry in docs/features_notes.yaml, empty for none.

    Raises:
        ValueError: The note contradicts the tests, or is of an unknown kind.
    """
    if set(note) - set(NOTES) or len(note) > 1 or not all(note.values()):
        raise ValueError(f"{feature}: a note is one of {', '.join(NOTES)}, with a reason, got: {note}")
    for kind, reason in note.items():
        word = kind.replace("_", " ")
        if kind == "not_applicable" and proofs:
            raise ValueError(f"{feature}: noted as not applicable, but {proofs[0].test} covers it")
        if kind != "not_applicable" and not proofs:
            raise ValueError(f"{feature}: noted as proven {word}, but no test covers it")
        return word, reason
    if not proofs:
        return "not yet", ""
    real = [proof for proof in proofs if proof.real]
    if not real:
        return "unit tests", ""
    if all(proof.long for proof in real):
        return "long tests", ""
    return ("by imitation" if feature.partition("-")[0] in IMITATED else "works"), ""


def render(
    ledger: Mapping[str, Mapping[str, str]],
    proofs: Mapping[str, Sequence[Proof]],
    notes: Mapping[str, Mapping[str, str]],
) -> str:
    """Return the page's text.

    Raises:
        ValueError: A note is wrong, or is for a feature that the ledger doesn't have.
    """
    if unknown := sorted(set(notes) - set(ledger)):
        raise ValueError(f"features_notes.yaml has unknown features: {', '.join(unknown)}")
    rows: dict[str, list[tuple[str, ...]]] = {name: [] for name in DATABASES.values()}
    counts: dict[str, Counter[str]] = {name: Counter() for name in DATABASES.values()}
    for feature, row in ledger.items():
        found = proofs.get(feature, ())
        word, reason = status(feature, found, notes.get(feature, {}))
        database = DATABASES[feature.partition("-")[0]]
        shown = f"{word}: {reason}" if reason else word
        tests = "<br>".join(f"`{proof.test}`{_kind(proof)}" for proof in found)
        rows[database].append((feature, row["feature"].replace("<", "&lt;"), shown, tests))
        counts[database][word] += 1
    return "\n".join(_lines(rows, counts)) + "\n"


def _kind(proof: Proof) -> str:
    """Return what to say behind a test's name."""
    kinds = ["long"] * proof.long + ["unit"] * (not proof.real)
    return f" ({', '.join(kinds)})" if kinds else ""


def _lines(
    rows: Mapping[str, Sequence[tuple[str, ...]]], counts: Mapping[str, Counter[str]]
) -> Iterator[str]:
    yield "# Features"
    yield ""
    yield "Generated by `make features` from the `covers` marks of the tests; don't edit. What must hold for"
    yield "a row is in [ledger.yaml](ledger.yaml). The status is computed from the marked tests:"
    yield ""
    yield from (f"- *{word}*: {meaning}" for word, meaning in STATUSES.items())
    yield ""
    yield f"| database | {' | '.join(STATUSES)} | all |"
    yield f"|---|{'---|' * len(STATUSES)}---|"
    for name, count in counts.items():
        yield f"| {name} | {' | '.join(str(count[word]) for word in STATUSES)} | {count.total()} |"
    for name, table in rows.items():
        yield from ("", f"## {name}", "", "| id | feature | status | tests |", "|---|---|---|---|")
        for row in table:
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page, or with ``--check`` only report whether it is up to date."""
    parser = argparse.ArgumentParser(description="Write docs/features.md")
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date")
    check = parser.parse_args(arguments).check
    page = ROOT / "docs" / "features.md"
    try:
        text = render(_read("ledger.yaml"), collect(), _read("features_notes.yaml"))
    except ValueError as error:
        sys.exit(str(error))
    if check:
        if not page.exists() or page.read_text() != text:
            sys.exit("docs/features.md is out of date: run make features")
        return
    page.write_text(text)
    print(f"wrote {page.relative_to(ROOT)}")


def _read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docs" / name).read_text()) or {}


if __name__ == "__main__":
    main()
