"""Plain and deferred sensors see the same and end alike."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.sensors.cassandra import CdcRawNewSegmentsSensor, CdcRawSpaceSensor
from airflow_cdc_provider.sensors.observing import ObservingSensor
from airflow_cdc_provider.sensors.stream import CdcStreamHealthSensor
from airflow_cdc_provider.tasks.state import STATE_LAYOUT
from airflow_cdc_provider.triggers.observing import Given, Observation
from tests.unit.airflow_context import TaskContext
from tests.unit.conftest import WriteSegment
from tests.unit.sensors.sensor_runs import WAYS, Make, both_ways

DECLARATION: dict[str, Any] = {"name": "shop", "source": {"type": "cassandra", "conn_id": "cassandra_shop"}}


@both_ways
@pytest.mark.covers("CAS-SETUP-03", "CAS-D3X-15")
def test_space_sensor_ends_when_cdc_raw_is_fuller_than_the_limit(
    wait: Any, write_segment: WriteSegment, tmp_path: Path
) -> None:
    write_segment(1, end=10, size=300)

    def make(**how: Any) -> ObservingSensor:
        return CdcRawSpaceSensor(
            task_id="space",
            cdc_raw=str(tmp_path / "cdc_raw"),
            total_space_bytes=1000,
            max_used_ratio=0.5,
            **how,
        )

    value = wait(make, TaskContext(), lambda: write_segment(2, end=10, size=300) and None)
    assert (value["used_bytes"], value["segments"], value["total_bytes"]) == (604, 2, 1000)
    assert value["used_ratio"] == 0.604


@both_ways
def test_space_sensor_ends_when_cdc_raw_will_soon_be_full_at_the_rate_at_which_it_fills(
    wait: Any, write_segment: WriteSegment, tmp_path: Path
) -> None:
    then = time.time() - 100
    os.utime(write_segment(1, end=10, size=300), (then, then))

    def make(**how: Any) -> ObservingSensor:
        return CdcRawSpaceSensor(
            task_id="space",
            cdc_raw=str(tmp_path / "cdc_raw"),
            total_space_bytes=1000,
            max_used_ratio=None,
            min_seconds_to_full="60",
            **how,
        )

    value = wait(make, TaskContext(), lambda: write_segment(2, end=10, size=300) and None)
    assert value["bytes_per_second"] == pytest.approx(3, rel=0.05), "300 bytes in 100 seconds"
    assert value["seconds_to_full"] == pytest.approx(32, rel=0.05), "with room for one segment more"


@pytest.mark.covers("CAS-D3X-15")
def test_what_the_space_sensor_sees_are_gauges(
    write_segment: WriteSegment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_cdc_provider.sensors import cassandra

    then = time.time() - 100
    os.utime(write_segment(1, end=10, size=100, folder=tmp_path / "host-1"), (then, then))
    write_segment(2, end=10, size=200, folder=tmp_path / "host-1")
    gauges: dict[str, tuple[float, dict[str, str]]] = {}
    stats = SimpleNamespace(gauge=lambda name, value, tags: gauges.update({name: (value, tags)}))
    monkeypatch.setattr(cassandra, "Stats", stats)
    sensor = CdcRawSpaceSensor(
        task_id="space", cdc_raw=str(tmp_path), total_space_bytes=1000, max_used_ratio=0.9
    )
    assert not sensor.poke(TaskContext())
    assert gauges["cdc.cdc_raw.used_bytes"] == (304, {"host": "host-1"})
    sensor.connector = {"name": "shop", "source": {"type": "cassandra"}, "metric_tags": {"team": "a"}}
    assert not sensor.poke(TaskContext())
    tags = {"team": "a", "connector": "shop", "source": "cassandra", "host": "host-1"}
    assert gauges["cdc.cdc_raw.used_bytes"] == (304, tags)
    assert gauges["cdc.cdc_raw.total_bytes"][0] == 1000
    assert gauges["cdc.cdc_raw.used_ratio"][0] == 0.304
    assert gauges["cdc.cdc_raw.bytes_per_second"][0] == pytest.approx(2, rel=0.05)
    assert gauges["cdc.cdc_raw.seconds_to_full"][0] == pytest.approx(248, rel=0.05)
    assert gauges["cdc.cdc_raw.oldest_seconds"][0] == pytest.approx(100, rel=0.05)


@pytest.mark.covers("CAS-SETUP-04")
def test_space_sensor_takes_folder_room_and_pace_from_a_nodes_yaml(
    write_segment: WriteSegment, tmp_path: Path
) -> None:
    write_segment(1, end=10, size=300)
    yaml = tmp_path / "cassandra.yaml"
    settings = f"cdc_raw_directory: {tmp_path / 'cdc_raw'}\ncdc_total_space_in_mb: 1\n"
    yaml.write_text(f"cdc_enabled: true\n{settings}cdc_free_space_check_interval_ms: 90000\n")

    def sensor(**how: Any) -> CdcRawSpaceSensor:
        return CdcRawSpaceSensor(task_id="space", cassandra_yaml=str(yaml), poke_interval=5, **how)

    trigger = sensor().trigger(TaskContext())
    assert (trigger.cdc_raw, trigger.total_space_bytes) == (str(tmp_path / "cdc_raw"), 1 << 20)
    assert trigger.poll_seconds == 90, "never more often than the node itself looks"
    assert sensor(cdc_raw="/other").trigger(TaskContext()).cdc_raw == "/other"


@pytest.mark.covers("CAS-SETUP-04")
def test_space_sensor_knows_the_defaults_of_a_nodes_yaml(tmp_path: Path) -> None:
    yaml = tmp_path / "conf" / "cassandra.yaml"
    yaml.parent.mkdir()
    yaml.write_text("cdc_enabled: true\n")
    sensor = CdcRawSpaceSensor(task_id="space", cassandra_yaml=str(yaml), poke_interval=0.1)
    with pytest.raises(ConfigurationError, match="the cdc_raw folder is missing"):
        sensor.trigger(TaskContext())
    (tmp_path / "data" / "cdc_raw").mkdir(parents=True)
    trigger = sensor.trigger(TaskContext())
    assert (trigger.cdc_raw, trigger.poll_seconds) == (str(tmp_path / "data" / "cdc_raw"), 0.25)


@both_ways
@pytest.mark.covers("CAS-SETUP-01")
@pytest.mark.parametrize("text", ["cdc_enabled: false\n", "cluster_name: blue\n"])
def test_a_node_without_cdc_fails_the_sensor_at_once(wait: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "cassandra.yaml").write_text(text)

    def make(**how: Any) -> ObservingSensor:
        return CdcRawSpaceSensor(
            task_id="space", cassandra_yaml=str(tmp_path / "cassandra.yaml"), cdc_raw=str(tmp_path), **how
        )

    with pytest.raises(AirflowFailException, match=r"doesn't enable CDC: expected cdc_enabled: true"):
        wait(make, TaskContext(), lambda: None)


@both_ways
@pytest.mark.covers("CAS-READ-01", "CAS-CFG-25")
def test_news_sensor_ends_when_there_are_segments_after_the_offset(
    wait: Any, write_segment: WriteSegment, tmp_path: Path
) -> None:
    folder = tmp_path / "landing" / "host-1"
    write_segment(5, end=900, completed=True, folder=folder)
    write_segment(6, end=300, folder=folder)
    context = TaskContext()
    reached = {"host-1": {"v": 1, "floor": 5, "open": {"6": 300}}}
    _store_offset(context, reached)

    def make(**how: Any) -> ObservingSensor:
        return CdcRawNewSegmentsSensor(
            task_id="news", connector=DECLARATION, cdc_raw=str(tmp_path / "landing"), **how
        )

    value = wait(make, context, lambda: write_segment(6, end=301, folder=folder) and None)
    assert value == {"new_segments": 1, "hosts": {"host-1": 1}}


@both_ways
def test_news_sensor_ends_at_once_before_the_first_run(
    wait: Any, write_segment: WriteSegment, tmp_path: Path
) -> None:
    write_segment(5, end=900, folder=tmp_path / "landing" / "host-1")

    def make(**how: Any) -> ObservingSensor:
        return CdcRawNewSegmentsSensor(
            task_id="news", connector=DECLARATION, cdc_raw=str(tmp_path / "landing"), **how
        )

    assert wait(make, TaskContext(), lambda: None)["new_segments"] == 1


@both_ways
def test_what_a_person_must_change_fails_at_once(
    wait: Any, tmp_path: Path, write_segment: WriteSegment
) -> None:
    write_segment(1)

    def make(**how: Any) -> ObservingSensor:
        return CdcRawSpaceSensor(
            task_id="space", cdc_raw=str(tmp_path / "cdc_raw"), max_used_ratio=0.9, **how
        )

    def vanish() -> None:
        for file in (tmp_path / "cdc_raw").iterdir():
            file.unlink()
        (tmp_path / "cdc_raw").rmdir()

    with pytest.raises(AirflowFailException, match="can't be read"):
        wait(make, TaskContext(), vanish)


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("leave", ["soft_fail", "never_fail"])
def test_a_sensor_that_may_not_fail_skips(tmp_path: Path, deferrable: bool, leave: str) -> None:
    how: dict[str, Any] = {leave: True, "deferrable": deferrable}
    sensor = CdcRawSpaceSensor(task_id="space", cdc_raw=str(tmp_path / "nowhere"), **how)
    with pytest.raises(AirflowSkipException):
        sensor.execute(TaskContext())


def test_a_plain_sensor_times_out_as_airflows_do(tmp_path: Path, write_segment: WriteSegment) -> None:
    write_segment(1)
    sensor = CdcRawSpaceSensor(
        task_id="space", cdc_raw=str(tmp_path / "cdc_raw"), poke_interval=0.05, timeout=0.1, deferrable=False
    )
    with pytest.raises(AirflowSensorTimeout):
        sensor.execute(TaskContext())


@pytest.mark.parametrize("wait", WAYS)
def test_a_server_that_does_not_answer_is_waited_out(
    wait: Any, tmp_path: Path, write_segment: WriteSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_cdc_provider.triggers.cassandra import CdcRawSpaceTrigger

    answers: Iterator[Observation | None] = iter([None, None, Observation(True, {"n": 1})])

    async def observe(self: Any, given: Given) -> Observation:
        answer = next(answers)
        if answer is None:
            raise TransientError("no answer")
        return answer

    monkeypatch.setattr(CdcRawSpaceTrigger, "observe", observe)

    def make(**how: Any) -> ObservingSensor:
        return CdcRawSpaceSensor(task_id="space", cdc_raw=str(tmp_path), **how)

    assert wait(make, TaskContext(), lambda: None) == {"n": 1}


class StreamState:
    """The state file of a continuous application that another host runs."""

    def __init__(self, work: Path) -> None:
        self.path = work / "shop" / "stream" / "state.json"
        self.path.parent.mkdir(parents=True)

    def writes(self, status: str = "running", *, ago: float = 0, lag: float = 0, error: str = "") -> None:
        state = {
            "pid": 1,
            "host": "another-host",
            "name": "shop",
            "started_at": time.time() - 60,
            "heartbeat_at": time.time() - ago,
            "rounds": 3,
            "lag_seconds": lag,
            "status": status,
            "error": error,
        }
        self.path.write_text(json.dumps(state))


def _watch(work: Path, **arguments: Any) -> Make:
    def make(**how: Any) -> ObservingSensor:
        return CdcStreamHealthSensor(
            task_id="health", connector=DECLARATION, work_folder=str(work), **arguments, **how
        )

    return make


@both_ways
def test_health_sensor_ends_when_the_application_ended_well(wait: Any, tmp_path: Path) -> None:
    stream = StreamState(tmp_path)
    stream.writes()
    assert wait(_watch(tmp_path), TaskContext(), lambda: stream.writes("stopped"))["status"] == "stopped"


@both_ways
def test_health_sensor_ends_after_its_time_and_leaves_the_application(wait: Any, tmp_path: Path) -> None:
    StreamState(tmp_path).writes()
    assert wait(_watch(tmp_path, watch_seconds=0.5), TaskContext(), lambda: None)["status"] == "running"


@both_ways
@pytest.mark.parametrize(
    ("state", "kind", "text"),
    [
        ({"ago": 5000}, CdcError, "is dead.*none for 5000 s"),
        ({"lag": 500}, CdcError, "behind its source.*at most 60 s, found 500 s"),
        ({"status": "failed", "error": "[CDC-TRANSIENT] no server"}, CdcError, "failed.*no server"),
        ({"status": "failed", "error": "[CDC-POSITION-LOST] too late"}, AirflowFailException, "too late"),
    ],
)
@pytest.mark.covers("MDB-XD-21")
def test_health_sensor_fails_when_the_application_ails(
    wait: Any, tmp_path: Path, state: dict[str, Any], kind: type[Exception], text: str
) -> None:
    stream = StreamState(tmp_path)
    stream.writes()
    with pytest.raises(kind, match=text):
        wait(_watch(tmp_path, max_lag_seconds=60), TaskContext(), lambda: stream.writes(**state))


def _store_offset(context: TaskContext, offset: dict[str, Any]) -> None:
    from airflow_cdc_provider.assets import changes_asset

    context.assets[changes_asset("shop")].set(
        "offset", {"layout": STATE_LAYOUT, "source": "cassandra", "offset": offset}
    )
