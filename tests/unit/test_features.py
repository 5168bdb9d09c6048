"""The features page says what the tests prove, no more."""

from __future__ import annotations

import re

import pytest

from tools.features import CoverageCollector, render, status

pytest_plugins = ["pytester"]
LEDGER = {"CAS-A-01": "first", "MDB-B-01": "either | or"}


def test_feature_without_test_is_not_yet() -> None:
    page = render(LEDGER, {"CAS-A-01": ["tests/test_a.py::test_x"]}, {})
    assert "| CAS-A-01 | first | works | `tests/test_a.py::test_x` |" in page
    assert r"| MDB-B-01 | either \| or | not yet |  |" in page
    assert "| Cassandra | 1 | 0 | 0 | 0 | 0 | 1 |" in page


def test_what_is_tested_on_an_imitation_alone_is_said_to_be() -> None:
    page = render({"SCY-A-01": "first", "SCY-A-02": "second"}, {"SCY-A-01": ["tests/test_a.py::test_x"]}, {})

    assert "| SCY-A-01 | first | by imitation | `tests/test_a.py::test_x` |" in page
    assert "| SCY-A-02 | second | not yet |  |" in page
    assert "| ScyllaDB | 0 | 0 | 1 | 0 | 1 | 2 |" in page


def test_note_that_contradicts_the_tests_is_refused() -> None:
    with pytest.raises(ValueError, match="noted as not applicable, but t covers it"):
        status("CAS-A-01", ["t"], {"not_applicable": "why"})
    with pytest.raises(ValueError, match="no test covers it"):
        status("CAS-A-01", [], {"by_recording": "why"})
    with pytest.raises(ValueError, match="with a reason"):
        status("CAS-A-01", [], {"not_applicable": ""})
    with pytest.raises(ValueError, match="unknown features: XXX"):
        render(LEDGER, {}, {"XXX": {"not_applicable": "why"}})


def test_marks_are_read_by_collection_alone(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = covers(*ids)")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.covers("CAS-A-01", "MDB-B-01")
        @pytest.mark.parametrize("n", [1, 2])
        def test_x(n):
            raise AssertionError("collection runs nothing")
        """
    )
    collector = CoverageCollector()
    pytester.inline_run("--collect-only", plugins=[collector])
    (proof,) = collector.tests["MDB-B-01"]
    assert re.fullmatch(r"test_marks\w+\.py::test_x", proof)


def test_mark_with_an_unknown_id_stops_the_session(pytester: pytest.Pytester) -> None:
    from tests.conftest import ROOT

    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makeini(f"[pytest]\nmarkers = covers(*ids)\npythonpath = {ROOT}")
    pytester.makepyfile("import pytest\n\n@pytest.mark.covers('CAS-NO-99')\ndef test_x(): ...")
    result = pytester.runpytest_subprocess()
    result.stderr.fnmatch_lines(["*covers marks that docs/ledger.yaml doesn't know*", "*test_x: CAS-NO-99*"])
