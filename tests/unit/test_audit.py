"""The audit finds what it is for, and nothing that has a reason."""

from __future__ import annotations

from email.message import Message
from types import SimpleNamespace
from typing import Any

import pytest

from tools.audit import __main__ as audit


def distribution(name: str, **headers: str) -> Any:
    metadata = Message()
    for header, value in headers.items():
        metadata[header.replace("_", "-")] = value
    return SimpleNamespace(name=name, metadata=metadata)


@pytest.mark.parametrize(
    "text",
    [
        "MIT",
        "Apache-2.0",
        "MIT OR Apache-2.0",
        "BSD-2-Clause AND Apache-2.0 WITH LLVM-exception",
        "3-Clause BSD License",
    ],
)
def test_permissive_licences_are_no_findings(text: str) -> None:
    assert not list(
        audit.licences([distribution("a", License_Expression=text), distribution("b", License=text)])
    )


@pytest.mark.parametrize(
    "text", ["GPL-3.0-only", "MIT AND GPL-2.0", "AGPL-3.0", "Proprietary", "", "MITx", "MIT or so"]
)
def test_other_licences_are_findings(text: str) -> None:
    assert [name for name, _ in audit.licences([distribution("A_b", License=text)])] == ["a-b"]


def test_classifiers_that_name_no_licence_leave_it_to_the_text() -> None:
    approved = distribution("a", Classifier="License :: OSI Approved", License="MIT\nCopyright")
    assert not list(audit.licences([approved]))


def test_a_finding_without_a_reason_and_a_reason_without_a_finding_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {"tests/a.py Secret Keyword": "line 1", "src/b.py Private Key": "line 2"}
    assert not audit.report("secrets", found, {"tests/* Secret Keyword": "", "src/b.py Private Key": ""})
    assert audit.report("secrets", found, {"tests/* Secret Keyword": ""})
    assert "src/b.py Private Key: line 2" in capsys.readouterr().out
    assert audit.report("secrets", found, {"*": "", "docs/*": "gone"})
    assert "docs/*: not found any more" in capsys.readouterr().out


def test_pins_are_found_and_compared_with_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert {"pyspark", "atheris", "hatchling"} <= audit.pins().keys()
    (tmp_path / "safety_db").mkdir()
    (tmp_path / "safety_db" / "insecure_full.json").write_text(
        '{"$meta": {"timestamp": 0}, "Some.Name": [{"id": "x-1", "v": "<2", "specs": ["<2"], "advisory": ""},'
        '{"id": "x-2", "v": "<1", "specs": ["<1"], "advisory": "old"}]}'
    )
    monkeypatch.setattr(audit, "installed", lambda: tmp_path)
    assert [name for name, _ in audit.advisories({"some-name": "1.5", "other": "1"})] == ["some-name x-1"]
