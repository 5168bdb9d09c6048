"""A MongoDB database whose connector is sent signals; each stage is a job of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
from confluent_kafka import Producer

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.application import STAGES
from airflow_cdc_provider.jobs.context.clients import Clients, Connections
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.resuming.snapshot_requests import SignalState
from airflow_cdc_provider.jobs.spark.session import build_lake
from airflow_cdc_provider.jobs.spec import JobResult, JobSpec
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.notifications.snapshot_events import SnapshotEvent
from airflow_cdc_provider.signals.files import send
from airflow_cdc_provider.sources.registry import source_plugin
from tests.integration.jobs.equality import assert_mirror_equals_collection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from server_kit import KafkaServer


class _WatchedClients(Clients):
    """Clients that also keep the events that they send notifications of."""

    events: list[SnapshotEvent]

    def notify(self, event: SnapshotEvent) -> None:
        """Keep it, and do what every job does."""
        self.events.append(event)
        super().notify(event)


class Signalled:
    """The database and its connector.

    Args:
        spark: The session.
        database: The database, of pymongo.
        connection: The connection's values.
        folder: A folder for signals.
    """

    def __init__(
        self, spark: SparkSession, database: Any, connection: Mapping[str, Any], folder: Path
    ) -> None:
        self.spark = spark
        self.database = database
        self.connection = connection
        self.folder = folder / "signals"
        self.broker: KafkaServer | None = None
        self.events: list[SnapshotEvent] = []
        self.declaration: dict[str, Any] = {
            "name": f"mongo_{database.name}",
            "source": {"type": "mongodb"},
            "tables": [rf"{database.name}\..*"],
            "snapshot": {"mode": "never"},
            "lake": {"catalog": "lake", "namespace": database.name},
        }

    @property
    def signals_path(self) -> str:
        """Where Airflow's channel is."""
        return str(self.folder)

    def signal_by(self, broker: KafkaServer) -> None:
        """Let signals come by a topic, which isn't made yet, and notifications go to one, which is."""
        self.broker = broker
        name = self.database.name
        broker.create_topic(f"{name}.notes")
        kafka = {"bootstrap_servers": broker.bootstrap, "topic": f"{name}.signals", "group_id": name}
        self.declare("signals", channels=["kafka"], kafka=kafka)
        self.declare("notifications", channels=["table", "sink"], topic=f"{name}.notes", connection="k")

    def say(self, value: str, key: str = "") -> None:
        """Put a message into the topic of signals; by default with the connector's key."""
        assert self.broker is not None
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        producer.produce(f"{self.database.name}.signals", value, key or self.declaration["name"])
        assert not producer.flush(20)

    def declare(self, section: str, **options: Any) -> None:
        """Change options of a section."""
        self.declaration[section] = {**self.declaration.get(section, {}), **options}

    def run(self, stage: str = "sync", **options: Any) -> JobResult:
        """Run a stage as a job of its own; what record to snapshots is added to ``events``."""
        connector = Connector.from_dict(self.declaration)
        lake = build_lake(self.spark, connector)
        lake.create_namespace(connector.namespace)
        options = {"signals_path": self.signals_path, **options}
        spec = JobSpec(stage, self.declaration, "", options=options)  # type: ignore[arg-type]
        with closing(source_plugin(connector.type).source(connector, self.connection)) as source:
            sink = {"bootstrap.servers": self.broker.bootstrap} if self.broker else {}
            job = Job(spec, connector)
            with closing(_WatchedClients(job, lake, Connections(notifications_kafka=sink))) as clients:
                clients.events = self.events
                stores = Stores.of(self.spark, lake, connector)
                return STAGES[stage](Run(job, stores, source, clients, RunReport()))

    def send(self, signal: str, identity: str = "", **data: Any) -> str:
        """Hand over a signal as Airflow does, or by a topic; ``tables`` are names in this database."""
        if (tables := data.pop("tables", None)) is not None:
            data["data-collections"] = [rf"{self.database.name}\.{name}" for name in tables]
        if self.broker is not None:
            self.say(json.dumps({"id": identity, "type": signal, "data": data}))
            return identity
        return send(self.folder, signal, data, identity)

    def copy(self, *tables: str, identity: str = "", **data: Any) -> str:
        """Ask for a snapshot of tables."""
        return self.send("execute-snapshot", identity, tables=tables, **data)

    @property
    def state(self) -> SignalState:
        """What is asked for, as it is committed."""
        connector = Connector.from_dict(self.declaration)
        changes = ChangesTable(build_lake(self.spark, connector), connector)
        return Progress.from_offset(changes.state().offset).signals

    def outcome(self, identity: str) -> str:
        """Return what became of a signal."""
        return next(record.outcome for record in self.state.records if record.id == identity)

    def event_kinds(self, identity: str) -> list[str]:
        """List the kinds of a signal's events, repeated ones once."""
        kinds = [event.kind for event in self.events if event.request_id == identity]
        return [kind for n, kind in enumerate(kinds) if n == 0 or kinds[n - 1] != kind]

    def notified(self, identity: str) -> list[Any]:
        """List the notifications with an id that stand in the lake, oldest first."""
        rows = self.spark.table(f"lake.{self.database.name}.mongo_{self.database.name}_notifications")
        return rows.where(rows["id"] == identity).orderBy("timestamp").collect()

    def notified_by_topic(self, identity: str) -> list[str]:
        """List the types of the notifications with an id that a topic got, in its order."""
        assert self.broker is not None
        values = [json.loads(one.value()) for one in self.broker.read(f"{self.database.name}.notes")]
        return [value["type"] for value in values if value["id"] == identity]

    def records(self, table: str, kinds: Sequence[str] = ("change", "snapshot")) -> list[Any]:
        """List a table's records in the order in which its events are published."""
        rows = self.spark.table(f"lake.{self.database.name}.mongo_{self.database.name}_changes")
        of_table = rows.where(rows["source_table"] == f"{self.database.name}.{table}")
        wanted = of_table.where(of_table["kind"].isin(list(kinds)))
        return wanted.orderBy("batch", "origin", "position").collect()

    def copied(self, table: str) -> Counter[bytes]:
        """Count how often each row was read by snapshots, by its key."""
        return Counter(bytes(row["key"]) for row in self.records(table, ["snapshot"]))

    def copied_ids(self, table: str) -> list[Any]:
        """List the ``_id`` of each document that snapshots read, in their order."""
        return [bson.decode(row["payload"])["_id"] for row in self.records(table, ["snapshot"])]

    def mirror_equals(self, table: str) -> int:
        """Compare a mirror with its collection; return the number of documents."""
        mirror = f"{self.database.name}.{self.database.name}_{table}"
        return assert_mirror_equals_collection(self.spark, self.database[table], mirror)

    def assert_no_read_is_behind(self, table: str) -> None:
        """Require that no row that a snapshot read follows a change of its key that is as new or newer."""
        newest: dict[bytes, bytes] = {}
        for row in self.records(table):
            key, version = bytes(row["key"]), bytes(row["version"])
            assert version > newest.get(key, b""), (row["kind"], row["batch"], key)
            newest[key] = version
