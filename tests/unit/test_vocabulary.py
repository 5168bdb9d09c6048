"""The vocabulary lint finds replaced words in prose, identifiers and file names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import vocabulary
from tools.vocabulary import check_name, check_text, is_checked


def found(text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.found) for finding in check_text("a.py", text)]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("what was told", "told"),
        ("made anew", "anew"),
        ("is set apart", "set apart"),
        ("a snapshot beside the stream", "beside the stream"),
        ("keys in doubt", "doubt"),
        ("cdc.doubtful", "doubtful"),
        ("lets go of it", "lets go of"),
        ("were passed over", "passed over"),
        ("two wishes", "wishes"),
        ("paths made up", "made up"),
        ("a run begun before", "begun"),
        ("from the begin on", "the begin"),
    ],
)
def test_word_in_prose_is_found(text: str, word: str) -> None:
    assert found(text) == [(1, word)]


@pytest.mark.parametrize(
    ("identifier", "word"),
    [
        ("compare_told", "told"),
        ("_told", "told"),
        ("TOLD_SCHEMA", "told"),
        ("SnapshotWish", "wish"),
        ("made_up_paths", "made up"),
        ("madeUpPaths", "made up"),
        ("HTTPTold2", "told"),
        ("SET_APART", "set apart"),
    ],
)
def test_word_in_an_identifier_is_found(identifier: str, word: str) -> None:
    assert found(f"x = {identifier}(1)") == [(1, word)]


@pytest.mark.parametrize(
    "text",
    [
        "a toldest, a retold and a doubtless",
        "all apart from the last",
        "all apart\nfrom the last",
        "offset = file.tell()",
        "it was set. Apartments were let",
        "passed, over there",
    ],
)
def test_other_words_are_not_findings(text: str) -> None:
    assert found(text) == []


def test_phrase_across_lines_is_found_at_its_first_word() -> None:
    assert found("one\n# it was let\n# go of\n") == [(2, "let go of")]
    assert found('raise X(\n    "passed "\n    "over"\n)') == [(2, "passed over")]


def test_each_occurrence_is_one_finding() -> None:
    assert found("told\ntold, untold\nset apart") == [
        (1, "told"),
        (2, "told"),
        (2, "untold"),
        (3, "set apart"),
    ]


def test_file_name_is_checked_too() -> None:
    (finding,) = check_name("package/signals/wishes.py")
    assert str(finding) == "package/signals/wishes.py:0: wishes: use request"


def test_finding_names_file_line_word_and_replacement() -> None:
    (finding,) = check_text("docs/a.md", "one\ntwo wishes\n")
    assert str(finding) == "docs/a.md:2: wishes: use request"


def test_generated_and_recorded_files_are_not_checked() -> None:
    assert not is_checked("docs/features.md")
    assert not is_checked("docs/ledger.yaml")
    assert not is_checked("tests/fixtures/cassandra/notes.md")
    assert not is_checked("tools/vocabulary.py")
    assert is_checked("docs/airflow.md")
    assert is_checked("tests/unit/conftest.py")


def test_exit_code_is_1_with_findings_and_0_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vocabulary, "ROOT", tmp_path)
    (tmp_path / "good.md").write_text("reported\n")
    (tmp_path / "bad.md").write_text("told\n")
    assert vocabulary.main(["good.md"]) == 0
    assert vocabulary.main(["good.md", "bad.md"]) == 1
    assert capsys.readouterr().out.startswith("bad.md:1: told: use ")


def test_lists_the_projects_own_files() -> None:
    files = vocabulary.tracked_files()
    assert "README.md" in files
    assert "airflow_cdc_provider/assets.py" in files
    assert all(is_checked(path) for path in files)
