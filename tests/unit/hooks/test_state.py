"""What tasks read of a connector's state, by Airflow's own accessors; a supervisor of the test answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import AssetStateStoreResult, ErrorResponse
from airflow.sdk.execution_time.context import AssetStateStoreAccessors

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks.state import stored_batches, stored_offset, stored_snapshots
from airflow_cdc_provider.sensors.topics import CdcPublishLagSensor
from tests.unit.airflow_context import TaskContext

SHOP = Connector.from_dict(
    {"name": "shop", "source": {"type": "mongodb"}, "publish": {"kafka": {"connection": "kafka_shop"}}}
)
VALUES: dict[str, Any] = {
    "batches": {"commits": [[3, 100.0]]},
    "snapshots": {"tables": {}, "remaining": 1},
    "offset": {"source": "mongodb", "offset": {"at": 1}},
}


@dataclass
class Supervisor:
    """Answers as Airflow's supervisor does; refuses with an error if it has one."""

    refuses: ErrorType | None = None
    asked: list[str] = field(default_factory=list)

    def send(self, message: Any) -> Any:
        assert message.name == changes_asset(SHOP).name
        self.asked.append(message.key)
        if self.refuses is not None:
            return ErrorResponse(error=self.refuses, detail={})
        return AssetStateStoreResult(value=VALUES[message.key])


def context_of(monkeypatch: pytest.MonkeyPatch, supervisor: Supervisor, *inlets: Any) -> TaskContext:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    context = TaskContext()
    context["asset_state_store"] = AssetStateStoreAccessors(list(inlets))
    return context


@pytest.mark.parametrize("inlets", [(), (changes_asset(SHOP),)], ids=["templated", "named"])
@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (stored_batches, VALUES["batches"]),
        (stored_snapshots, VALUES["snapshots"]),
        (stored_offset, {"at": 1}),
    ],
)
def test_a_connectors_state_is_read_whether_its_asset_was_known_to_the_dag_or_not(
    read: Callable[..., Any], expected: Any, inlets: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor()
    assert read(context_of(monkeypatch, supervisor, *inlets), SHOP) == expected
    assert len(supervisor.asked) == 1


def test_a_sensor_whose_connector_is_a_template_is_given_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_SHOP", '{"conn_type": "kafka", "extra": {"bootstrap.servers": "b"}}'
    )
    sensor = CdcPublishLagSensor(task_id="near", connector="{{ params.connector }}")
    assert not sensor.inlets
    sensor.connector = SHOP  # as rendered
    assert sensor.given(context_of(monkeypatch, Supervisor())).batches == VALUES["batches"]


def test_a_task_that_may_not_read_a_state_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigurationError, match=f"expected asset {changes_asset(SHOP).name} among its inlets"
    ):
        stored_batches(context_of(monkeypatch, Supervisor(ErrorType.PERMISSION_DENIED)), SHOP)
    with pytest.raises(AirflowRuntimeError):  # which a retry may get over
        stored_batches(context_of(monkeypatch, Supervisor(ErrorType.API_SERVER_ERROR)), SHOP)
    assert stored_batches(context_of(monkeypatch, Supervisor(ErrorType.ASSET_STORE_NOT_FOUND)), SHOP) is None
