"""The features page says what the tests prove, no more."""

from __future__ import annotations

import re

import pytest

from tools.features import CoverageCollector, Proof, render, status

pytest_plugins = ["pytester"]
LEDGER = {
    "CAS-A-01": {"feature": "first", "must": "It holds."},
    "MDB-B-01": {"feature": "either | or", "must": "It holds."},
}
UNIT, REAL, LONG = Proof("tests/a.py::test_u"), Proof("tests/a.py::test_r", real=True), Proof("t", True, True)


def test_the_page_shows_each_row_with_its_status_and_tests() -> None:
    page = render(LEDGER, {"CAS-A-01": [REAL, UNIT]}, {})
    assert "| CAS-A-01 | first | works | `tests/a.py::test_r`<br>`tests/a.py::test_u` (unit) |" in page
    assert r"| MDB-B-01 | either \| or | not yet |  |" in page
    assert "| Cassandra | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 1 |" in page


@pytest.mark.parametrize(
    ("feature", "proofs", "note", "expected"),
    [
        ("CAS-A-01", [], {}, "not yet"),
        ("CAS-A-01", [UNIT], {}, "unit tests"),
        ("CAS-A-01", [UNIT, LONG], {}, "long tests"),
        ("CAS-A-01", [UNIT, LONG, REAL], {}, "works"),
        ("SCY-A-01", [UNIT], {}, "unit tests"),
        ("SCY-A-01", [REAL], {}, "by imitation"),
        ("SCY-A-01", [LONG], {}, "long tests"),
        ("MDB-B-01", [REAL], {"by_imitation": "why"}, "by imitation"),
        ("MDB-B-01", [UNIT], {"by_recording": "why"}, "by recording"),
        ("MDB-B-01", [], {"not_applicable": "why"}, "not applicable"),
    ],
)
def test_the_status_follows_from_what_the_tests_reach(
    feature: str, proofs: list[Proof], note: dict[str, str], expected: str
) -> None:
    assert status(feature, proofs, note)[0] == expected


def test_note_that_contradicts_the_tests_is_refused() -> None:
    with pytest.raises(ValueError, match="noted as not applicable, but t covers it"):
        status("CAS-A-01", [LONG], {"not_applicable": "why"})
    with pytest.raises(ValueError, match="no test covers it"):
        status("CAS-A-01", [], {"by_recording": "why"})
    with pytest.raises(ValueError, match="with a reason"):
        status("CAS-A-01", [], {"not_applicable": ""})
    with pytest.raises(ValueError, match="with a reason"):
        status("CAS-A-01", [], {"works": "really"})
    with pytest.raises(ValueError, match="unknown features: XXX"):
        render(LEDGER, {}, {"XXX": {"not_applicable": "why"}})


def test_marks_are_read_by_collection_alone(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = covers(*ids)\n recorded\n long")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.recorded
        @pytest.mark.covers("CAS-A-01", "MDB-B-01")
        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.long)])
        def test_x(n):
            raise AssertionError("collection runs nothing")
        """
    )
    collector = CoverageCollector()
    pytester.inline_run("--collect-only", plugins=[collector])
    (proof,) = collector.proofs["MDB-B-01"]
    assert re.fullmatch(r"test_marks\w+\.py::test_x", proof.test)
    assert (proof.real, proof.long) == (True, False)


def test_mark_with_an_unknown_id_stops_the_session(pytester: pytest.Pytester) -> None:
    from tests.conftest import ROOT

    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makeini(f"[pytest]\nmarkers = covers(*ids)\npythonpath = {ROOT}")
    pytester.makepyfile("import pytest\n\n@pytest.mark.covers('CAS-NO-99')\ndef test_x(): ...")
    result = pytester.runpytest_subprocess()
    result.stderr.fnmatch_lines(["*covers marks that docs/ledger.yaml doesn't know*", "*test_x: CAS-NO-99*"])
