from __future__ import annotations

from pathlib import Path

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.secrets import is_reference, resolve_secret

OPTION = "source.encryption.key_password"


def test_a_secret_is_where_its_reference_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_WORD", "a b ")
    file = tmp_path / "word"
    file.touch(0o600)
    file.write_text("c d \r\n")
    assert resolve_secret("${env:THE_WORD}", OPTION) == "a b "
    assert resolve_secret(f"${{file:{file}}}", OPTION) == "c d "


@pytest.mark.parametrize("text", ["", "word", "${", "$env:X", "${env:X}y", "${vault:x}"])
def test_anything_else_is_the_secret_itself(text: str) -> None:
    assert not is_reference(text)
    assert resolve_secret(text, OPTION) == text


def test_a_reference_to_nothing_names_the_option_and_the_place(tmp_path: Path) -> None:
    for reference, place in (
        ("${env:NOT_THERE}", "environment variable NOT_THERE"),
        (f"${{file:{tmp_path}/none}}", f"file {tmp_path}/none"),
    ):
        with pytest.raises(ConfigurationError) as told:
            resolve_secret(reference, OPTION)
        assert f"the secret of option {OPTION} is missing" in str(told.value)
        assert place in str(told.value)
