"""What a task's ``execute`` gets from Airflow, as plain objects that keep a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Context = Any  # stands for Airflow's Context wherever one is wanted
else:
    _Context = dict


@dataclass
class Store:
    """A state store: one JSON value per key."""

    values: dict[str, Any] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def set(self, key: str, value: Any) -> None:
        assert value is not None
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


@dataclass
class OutletEvent:
    """The event of one outlet; an alias collects the assets added to it."""

    extra: dict[str, Any] = field(default_factory=dict)
    added: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        self.added.append((asset.name, extra))


class ByName:
    """A mapping from assets and aliases, by their names."""

    def __init__(self, factory: Any) -> None:
        self.factory = factory
        self.found: dict[str, Any] = {}

    def __getitem__(self, asset: Any) -> Any:
        return self.found.setdefault(asset.name, self.factory())


class TaskContext(_Context):
    """A context as of a running task, with its stores and events at hand."""

    def __init__(self, task_id: str = "task", run_id: str = "manual__2026-11-21T10:00:00+00:00") -> None:
        self.assets = ByName(Store)
        self.events = ByName(OutletEvent)
        self.task_state = Store()
        self.xcom: dict[str, Any] = {}
        super().__init__(
            dag_run=SimpleNamespace(dag_id="shop_dag", run_id=run_id),
            ti=SimpleNamespace(
                task_id=task_id, map_index=-1, start_date=datetime.now(UTC), xcom_push=self.xcom.__setitem__
            ),
            asset_state_store=self.assets,
            task_state_store=self.task_state,
            outlet_events=self.events,
        )
