"""Snapshot mode ``custom``: which tables a class of one's own has read, and how it is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.snapshotter import EVERYTHING, Snapshotter
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.jobs.snapshots.custom import captures, due_by_class, filter_of, snapshotter_of
from airflow_cdc_provider.migration.debezium.properties import from_debezium

HERE = __name__
TABLES = ["shop.a", "shop.b", "shop.logs"]


class Choosing(Snapshotter):
    """Answers as its settings say, and notes what it is asked."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.asked: list[tuple[str, bool, bool]] = []

    def snapshot_data(self, offset_exists: bool, snapshot_in_progress: bool) -> bool:
        self.asked.append(("data", offset_exists, snapshot_in_progress))
        return bool(self.settings.get("data", super().snapshot_data(offset_exists, snapshot_in_progress)))

    def snapshot_schema(self, offset_exists: bool, snapshot_in_progress: bool) -> bool:
        self.asked.append(("schema", offset_exists, snapshot_in_progress))
        return True

    def stream(self) -> bool:
        return bool(self.settings.get("stream", True))

    def snapshot_on_data_error(self) -> bool:
        return bool(self.settings.get("on_data_error", False))

    def query(self, table: str) -> str | None:
        queries: dict[str, str | None] = {"shop.logs": None, **self.settings.get("queries", {})}
        return queries.get(table, EVERYTHING)


def connector(**settings: Any) -> Connector:
    snapshot = {"mode": "custom", "custom": f"{HERE}:Choosing", "custom_settings": settings}
    filters = {"filters": {"shop.b": '{"b": 1}'}}
    return Connector.from_dict(
        {"name": "shop", "source": {"type": "mongodb"}, "snapshot": {**snapshot, **filters}}
    )


def due(progress: Progress, **settings: Any) -> tuple[list[str], list[tuple[str, bool, bool]]]:
    own = Choosing(settings)
    return due_by_class(own, TABLES, progress), own.asked


def progress(**done: bool) -> Progress:
    taken = {f"shop.{name}": SnapshotProgress(done=value, started_us=1) for name, value in done.items()}
    return Progress(source={"at": 1}, snapshots=taken)


@pytest.mark.covers("MDB-SNAP-11")
def test_the_class_is_asked_and_its_answer_decides() -> None:
    first, asked = due(Progress())
    assert first == ["shop.a", "shop.b"], "not the one without a query"
    assert sorted(asked) == [("data", False, False), ("schema", False, False)]
    assert due(progress(a=True, b=True))[0] == []
    assert due(progress(a=True, b=True), data=True)[0] == ["shop.a", "shop.b"], "anew"
    goes_on, asked = due(progress(a=True, b=False))
    assert goes_on == ["shop.b"]
    assert ("data", True, True) in asked
    assert due(progress(a=True, b=False), data=False)[0] == []


@pytest.mark.covers("MDB-SNAP-11")
def test_tables_whose_changes_are_lost_are_read_anew_if_the_class_says_so() -> None:
    lost = progress(a=True, b=True).with_loss(["shop.a"], 5, "gone", tolerated=False)
    assert due(lost)[0] == []
    assert due(lost, on_data_error=True)[0] == ["shop.a"]
    assert connector(on_data_error=True).lost_position_action(hole=False) == "snapshot"
    assert connector(on_data_error=False).lost_position_action(hole=False) == "fail"


@pytest.mark.covers("MDB-SNAP-11")
def test_the_class_says_whether_changes_are_captured() -> None:
    assert captures(connector())
    assert not captures(connector(stream=False))
    plain = {"name": "shop", "source": {"type": "mongodb"}}
    assert captures(Connector.from_dict(plain))
    assert not captures(Connector.from_dict({**plain, "snapshot": {"mode": "initial_only"}}))


@pytest.mark.covers("MDB-SNAP-12")
def test_the_class_gives_a_query_for_a_collection_or_none() -> None:
    declared = connector(queries={"shop.a": '{"a": 1}'})
    assert [filter_of(declared, table) for table in TABLES] == ['{"a": 1}', '{"b": 1}', None]
    assert due(Progress(), queries={"shop.a": None})[0] == ["shop.b"]


@pytest.mark.covers("MDB-SNAP-10")
def test_the_class_is_made_once_with_its_settings() -> None:
    own = snapshotter_of(connector(x=1))
    assert isinstance(own, Choosing)
    assert own.settings == {"x": 1}
    assert snapshotter_of(connector(x=1)) is own
    assert snapshotter_of(connector(x=2)) is not own
    made = Connector.from_dict(connector(x=1).to_dict())
    assert snapshotter_of(made) is own


@pytest.mark.covers("MDB-SNAP-10")
def test_what_is_no_snapshotter_is_refused() -> None:
    def declared(**snapshot: Any) -> Connector:
        return Connector.from_dict({"name": "a", "source": {"type": "mongodb"}, "snapshot": snapshot})

    for place, told in ((f"{HERE}:due", "is not a snapshotter"), (f"{HERE}:Nothing", "can't be loaded")):
        with pytest.raises(ConfigurationError, match=told):
            snapshotter_of(declared(mode="custom", custom=place))
    for wrong in ({"mode": "custom"}, {"custom": f"{HERE}:Choosing"}, {"custom_settings": {"a": 1}}):
        with pytest.raises(ConfigurationError, match="require each other"):
            declared(**wrong)
    with pytest.raises(ConfigurationError, match=r"package\.module:Class"):
        declared(mode="custom", custom="io.debezium.Own")


@pytest.mark.covers("MDB-SNAP-03")
def test_every_snapshot_mode_of_debezium_is_known() -> None:
    def mode(value: str | None, **more: str) -> str:
        chosen = {} if value is None else {"snapshot.mode": value}
        return from_debezium({"topic.prefix": "shop", **chosen, **more}).connector.snapshot.mode

    flags = "snapshot.mode.configuration.based."
    assert mode(None) == "initial"
    assert mode("always") == "always"
    assert mode("initial") == "initial"
    assert mode("initial_only") == "initial_only"
    assert mode("no_data") == mode("never") == "never"
    assert mode("when_needed") == "when_needed"
    based = {f"{flags}snapshot.data": "true", f"{flags}start.stream": "false"}
    assert mode("configuration_based", **based) == "initial_only"
    assert mode("custom", **{"snapshot.mode.custom.name": f"{HERE}:Choosing"}) == "custom"
    with pytest.raises(ConfigurationError, match="Python class"):
        mode("custom", **{"snapshot.mode.custom.name": "org.example.Own"})
    with pytest.raises(ConfigurationError, match="one of"):
        mode("sometimes")
