"""The operator that hands signals over, and the command that does the same."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.cli import live_commands
from airflow_cdc_provider.operators.signal import CdcSignalOperator
from airflow_cdc_provider.signals.files import FolderChannel
from airflow_cdc_provider.signals.signal import ReceivedSignal, Signal
from airflow_cdc_provider.tasks.work_folder import signals_folder

DECLARATION = {"name": "shop", "source": {"type": "mongodb"}}
CONTEXT: Any = {
    "dag_run": SimpleNamespace(dag_id="d", run_id="r 1"),
    "ti": SimpleNamespace(task_id="signal", map_index=-1),
}


def handed_over(work: Path) -> list[ReceivedSignal]:
    return list(FolderChannel(signals_folder(str(work), "shop")).receive())


def operator(work: Path, **arguments: Any) -> CdcSignalOperator:
    given = {"task_id": "signal", "connector": DECLARATION, "work_folder": str(work), **arguments}
    return CdcSignalOperator(**given)


def test_a_retry_hands_over_the_same_signal(tmp_path: Path) -> None:
    task = operator(
        tmp_path, signal="execute-snapshot", tables=r"shop\.a, shop\.b", data='{"type": "blocking"}'
    )
    assert task.execute(CONTEXT) == task.execute(CONTEXT) == "d.signal.-1.r 1"
    data = {"type": "blocking", "data-collections": [r"shop\.a", r"shop\.b"]}
    assert handed_over(tmp_path) == [Signal("d.signal.-1.r 1", "execute-snapshot", data, "airflow")] * 2


def test_a_stop_needs_no_data_and_an_id_may_be_given(tmp_path: Path) -> None:
    assert operator(tmp_path, signal="stop-snapshot", signal_id="mine").execute(CONTEXT) == "mine"
    assert handed_over(tmp_path) == [Signal("mine", "stop-snapshot", {"type": "incremental"}, "airflow")]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"signal": "make-coffee"}, "execute-snapshot"),
        ({"signal": "execute-snapshot"}, "names no table"),
        ({"signal": "stop-snapshot", "data": {"type": "initial"}}, "type must be incremental"),
        (
            {"signal": "log", "connector": {**DECLARATION, "signals": {"channels": ["file"]}}},
            "doesn't accept signals from Airflow",
        ),
    ],
)
def test_what_cannot_be_followed_fails_at_once(
    tmp_path: Path, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(AirflowFailException, match=reason):
        operator(tmp_path, **arguments).execute(CONTEXT)
    assert handed_over(tmp_path) == []


def test_the_command_hands_over_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(json.dumps(DECLARATION))

    def ask(**arguments: str) -> None:
        given = {"data": "{}", "tables": "", "id": "", "work_folder": str(tmp_path), **arguments}
        live_commands.signal(Namespace(connector=str(file), **given))

    ask(signal="execute-snapshot", tables=r"shop\.a", id="1")
    ask(signal="log", data='{"message": "hello"}')
    first, second = handed_over(tmp_path)
    assert capsys.readouterr().out.splitlines() == ["1", second.id]
    assert first == Signal("1", "execute-snapshot", {"data-collections": [r"shop\.a"]}, "airflow")
    with pytest.raises(SystemExit):
        ask(signal="log", data="{")
    assert "--data is not valid JSON" in capsys.readouterr().err
