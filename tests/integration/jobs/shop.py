"""A shop in tests: a keyspace of the shared Cassandra, the connector of its tables, and their mirrors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cassandra.query import SimpleStatement

from tests.integration.jobs.equality import assert_mirror_equals_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_cdc_provider.jobs.spec import JobResult
    from server_kit import CassandraServer
    from tests.integration.jobs.conftest import RunStage


class Shop:
    """Writes statements to one keyspace, runs stages of its connector, and shows what the lake holds then.

    Tables are called by their names alone, in statements too: ``shop.run("INSERT INTO t (k) VALUES (1)")``.

    Args:
        spark: Has the lake as its catalog ``lake``.
        server: Node of the keyspace.
        session: On that node; it may be shared.
        keyspace: Exists already. The lake's namespace gets the same name.
        run_stage: Runs a stage in this process.

    Attributes:
        declaration: The connector's: all tables of the keyspace, all else by default. See `declare`.
        connection: The values of an Airflow connection to the node.
    """

    def __init__(
        self,
        spark: SparkSession,
        server: CassandraServer,
        session: Any,
        keyspace: str,
        run_stage: RunStage,
    ) -> None:
        self.spark = spark
        self.server = server
        self.session = session
        self.keyspace = keyspace
        self._run_stage = run_stage
        self.name = f"shop_{keyspace}"
        self.declaration: dict[str, Any] = {
            "name": self.name,
            "source": {"type": "cassandra", "cdc_raw": str(server.cdc_raw), "node": server.host_id},
            "tables": [rf"{keyspace}\..*"],
            "lake": {"catalog": "lake", "namespace": keyspace},
        }
        self.connection: dict[str, Any] = {"host": server.host, "port": server.port}

    def declare(self, **more: Any) -> None:
        """Change the declaration: what is given of a section is added to it, anything else is replaced."""
        for name, value in more.items():
            section = isinstance(value, Mapping)
            self.declaration[name] = {**self.declaration.get(name, {}), **value} if section else value

    def declare_catalog(self) -> None:
        """Declare the lake's catalog too, as a process that doesn't share the tests' Spark needs it."""
        warehouse = self.spark.conf.get("spark.sql.catalog.lake.warehouse")
        self.declare(lake={"catalog_options": {"type": "hadoop", "warehouse": warehouse}})

    def run(self, statement: str, values: Sequence[Any] | None = None) -> Any:
        """Execute a statement; values go where it says ``%s``."""
        return self.session.execute(SimpleStatement(statement, keyspace=self.keyspace), values)

    def prepare(self, statement: str) -> Any:
        """Prepare a statement for the session's ``execute``; values go where it says ``?``."""
        return self.session.prepare(statement, keyspace=self.keyspace)

    def close_segments(self) -> None:
        """Have the node complete the segments of what was written, so that all of it can be read."""
        self.server.roll_segment(self.session)

    def stage(
        self, stage: str, tables: Any = (), connection: Mapping[str, Any] | None = None, **options: Any
    ) -> JobResult:
        """Run a stage on what can be read now; with another connection than the shop's if given."""
        return self._run_stage(stage, self.declaration, connection or self.connection, tables, **options)

    def sync(self, **options: Any) -> JobResult:
        """Close segments, then run a sync."""
        self.close_segments()
        return self.stage("sync", **options)

    def table_name(self, table: str) -> str:
        """Return a table's full name, as outcomes have it."""
        return f"{self.keyspace}.{table}"

    def mirror_name(self, table: str) -> str:
        """Return the name of a table's mirror in the catalog."""
        return f"{self.keyspace}.{self.keyspace}_{table}"

    def mirror(self, table: str) -> DataFrame:
        """Return a table's mirror."""
        return self.spark.table(f"lake.{self.mirror_name(table)}")

    def side(self, table: str) -> DataFrame:
        """Return the tombstone table of a table's mirror."""
        return self.spark.table(f"lake.{self.mirror_name(table)}__tombstones")

    def static_columns(self, table: str) -> DataFrame:
        """Return the static columns table of a table's mirror."""
        return self.spark.table(f"lake.{self.mirror_name(table)}__static_columns")

    def changes(self, kind: str = "change") -> DataFrame:
        """Return the rows of one kind in the connector's changes table."""
        return self.spark.table(f"lake.{self.keyspace}.{self.name}_changes").where(f"kind = '{kind}'")

    def quarantine(self) -> DataFrame:
        """Return the connector's quarantine table."""
        return self.spark.table(f"lake.{self.keyspace}.{self.name}_quarantine")

    def drop_mirror(self, table: str) -> None:
        """Drop a table's mirror; its tombstone table stays."""
        self.spark.sql(f"DROP TABLE lake.{self.mirror_name(table)}")

    def assert_equal(self, table: str) -> int:
        """Compare a table as it is now with its mirror; return the number of rows."""
        return assert_mirror_equals_table(
            self.spark, self.session, self.mirror_name(table), self.table_name(table)
        )
