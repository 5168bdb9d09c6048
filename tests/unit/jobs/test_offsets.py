"""Setting and resetting where a connector resumes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs import offsets as stage
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from tests.unit.jobs.runs import run_of

SOURCE = {"host-1": {"v": 1, "floor": 7}}
SNAPSHOTS = {"s.a": SnapshotProgress(True), "s.b": SnapshotProgress(True)}


class Changes:
    """A changes table that holds an offset and nothing else."""

    def __init__(self) -> None:
        self.offset: Any = Progress(SOURCE, SNAPSHOTS).to_offset()

    def state(self) -> Any:
        return SimpleNamespace(offset=self.offset)

    def set_offset(self, offset: Any, state: Any) -> None:
        assert state.offset == self.offset
        self.offset = offset


def after(monkeypatch: pytest.MonkeyPatch, *tables: str, **options: Any) -> Progress:
    """Run the stage; return what the changes table holds then."""

    def validate(offset: Any) -> None:
        if "host-1" not in offset:
            raise ConfigurationError("this is no offset")

    monkeypatch.setattr(stage, "build_result", lambda run: None)
    connector = Connector.from_dict({"name": "shop", "source": {"type": "cassandra", "conn_id": "nodes"}})
    source, changes = SimpleNamespace(validate_offset=validate), Changes()
    stage.offsets(run_of(connector, changes=changes, source=source, options=options, tables=tables))
    return Progress.from_offset(changes.offset)


@pytest.mark.covers("CAS-FAULT-09")
def test_a_tables_reset_leaves_the_position_and_the_other_tables_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert after(monkeypatch, "s.a", action="reset") == Progress(SOURCE, {"s.b": SNAPSHOTS["s.b"]})


def test_a_reset_of_everything_begins_as_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert after(monkeypatch, action="reset") == Progress(None, {})


def test_an_offset_is_set_once_its_form_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    later = {"host-1": {"v": 1, "floor": 9}}
    assert after(monkeypatch, action="set", offset=later) == Progress(later, SNAPSHOTS)
    for wrong in ({"x": 1}, None, "text"):
        with pytest.raises(ConfigurationError):
            after(monkeypatch, action="set", offset=wrong)


def test_a_node_that_is_gone_is_forgotten_by_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert after(monkeypatch, action="forget", origin="host-1") == Progress({}, SNAPSHOTS)
    for wrong in ("host-2", None):
        with pytest.raises(ConfigurationError, match="one of host-1"):
            after(monkeypatch, action="forget", origin=wrong)


def test_show_changes_nothing_and_other_actions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert after(monkeypatch, action="show") == Progress(SOURCE, SNAPSHOTS)
    with pytest.raises(ConfigurationError, match="unknown action"):
        after(monkeypatch, action="remember")


def test_another_connectors_offset_is_refused_until_it_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"name": "shop", "source.type": "cassandra", "source.conn_id": "others"}
    offset = Progress(SOURCE, SNAPSHOTS, identity=theirs).to_offset()
    monkeypatch.setattr(Changes, "__init__", lambda self: setattr(self, "offset", offset))
    for action in ("set", "reset", "forget"):
        with pytest.raises(ConfigurationError, match=r"conn_id others, .*found .*conn_id nodes"):
            after(monkeypatch, action=action, offset=SOURCE, origin="host-1")
    adopted = after(monkeypatch, action="adopt")
    assert (adopted.source, adopted.snapshots) == (SOURCE, SNAPSHOTS)
    assert adopted.identity is not None
    assert adopted.identity["source.conn_id"] == "nodes"
