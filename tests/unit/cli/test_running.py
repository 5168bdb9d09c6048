from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from airflow_cdc_provider.cli.running import command, read_connector
from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost


def test_an_error_on_purpose_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    @command
    def fails(args: Namespace) -> None:
        raise PositionLost("gone", found="nothing", remedy="Take a snapshot")

    with pytest.raises(SystemExit) as ended:
        fails(Namespace())
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: [CDC-POSITION-LOST] gone: found nothing. Take a snapshot\n"


def test_an_error_of_ours_is_not_hidden() -> None:
    @command
    def fails(args: Namespace) -> None:
        raise KeyError("a defect")

    with pytest.raises(KeyError):
        fails(Namespace())


def test_a_declaration_is_read_in_both_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = tmp_path / "shop.yaml"
    ours.write_text("name: shop\nsource: {type: mongodb}\n")
    debezium = tmp_path / "shop.properties"
    debezium.write_text("topic.prefix=shop\nmongodb.password=secret\n")
    assert read_connector(str(ours)).name == read_connector(str(debezium)).name == "shop"
    expected = capsys.readouterr().err
    assert expected.startswith("note: property mongodb.password is ignored")
    assert "secret" not in expected
    with pytest.raises(ConfigurationError):
        read_connector(str(tmp_path / "none.yaml"))
