"""The parts of a run: a changed copy keeps every other field, and no secret is shown."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context.clients import Clients, Connections
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.spec import JobSpec
from airflow_cdc_provider.lake.stores import Stores

CONNECTOR = Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}})
OTHER: Any = object()


def stop() -> bool:
    return True


def connections() -> Connections:
    return Connections(
        kafka={"sasl.password": "secret-1"},
        pulsar={"token": "secret-2"},
        registry={"password": "secret-3"},
        signals_kafka={"sasl.password": "secret-4"},
        notifications_kafka={"sasl.password": "secret-5"},
    )


def parts() -> list[Any]:
    fake: Any = SimpleNamespace()
    return [
        Job(JobSpec("sync", {}, "result"), CONNECTOR, stop),
        Stores(fake, fake, fake, CONNECTOR),
        connections(),
    ]


@pytest.mark.parametrize("part", parts(), ids=lambda part: type(part).__name__)
def test_a_changed_copy_keeps_every_other_field(part: Any) -> None:
    names = [one.name for one in fields(part)]
    assert all(one.init for one in fields(part))
    for changed in names:
        copy = replace(part, **{changed: OTHER})
        assert getattr(copy, changed) is OTHER
        assert all(getattr(copy, name) is getattr(part, name) for name in names if name != changed)
        with pytest.raises(FrozenInstanceError):
            setattr(part, changed, OTHER)


def test_a_changed_copy_of_a_report_keeps_what_it_collected() -> None:
    assert all(one.init for one in fields(RunReport))
    report = RunReport()
    report.callbacks.append(lambda: None)
    report.signals.searched_through = 7
    copy = replace(report, uncommitted=("node-1",))
    assert (copy.callbacks, copy.signals) == (report.callbacks, report.signals)


def test_connection_values_are_not_shown() -> None:
    shown = repr(connections()) + repr(Clients(parts()[0], OTHER, connections()))
    assert "secret" not in shown


def test_connections_are_split_off_the_values_of_the_source() -> None:
    values = {
        "host": "node-1",
        "kafka": {"a": 1},
        "pulsar": {"b": 2},
        "registry": {"c": 3},
        "signals_kafka": {"d": 4},
        "notifications_kafka": {"e": 5},
    }
    found, own = Connections.split_off(values)
    assert found == Connections({"a": 1}, {"b": 2}, {"c": 3}, {"d": 4}, {"e": 5})
    assert own == {"host": "node-1"}


def test_a_failed_callback_does_not_keep_the_others_from_running() -> None:
    called: list[str] = []

    def fails() -> None:
        raise ConfigurationError("no")

    report = RunReport(callbacks=[fails, lambda: called.append("second")])
    report.on_finished()
    assert called == ["second"]
