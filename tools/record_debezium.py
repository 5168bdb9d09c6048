"""Record what Debezium's connectors for PostgreSQL and MySQL send, and what the databases say of their rows.

Run it when a case is added, or for another release::

    python -m tools.record_debezium [postgresql | mysql]

It starts the database (unpacked from Debian), loads ``snapshot.sql`` of its folder in
``tests/fixtures/debezium``, starts a connector per configuration (``DebeziumRecorder.java``,
downloaded from Maven Central), runs ``stream.sql``, and writes into the same folder, compressed:

* ``records.jsonl.gz``: of each configuration its records, in the order that they have in their topic: topic,
  key, value and headers, as Kafka's JsonConverter writes them with its schemas on. A schema is a line of its
  own, and records name it by its number. That a record without its schema is what the converter writes with
  schemas off is looked at here. Those of configuration ``avro`` are in base64, as Apicurio's AvroConverter
  writes them with ids as Confluent's; the schemas of these ids stand at the end.
* ``rows.json.gz``: of each table its columns with their types and rows, values as the database shows them.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import subprocess
import tempfile
import urllib.request
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from server_kit import mysql
from server_kit.cache import say
from server_kit.jars import debezium_relational_jars
from server_kit.mysql import MySqlServer
from server_kit.postgres import USER, PostgresServer
from server_kit.programs import find_java, run_program
from server_kit.registry import RegistryServer

_SOURCE: Final = Path(__file__).with_name("DebeziumRecorder.java")
FIXTURES: Final = Path(__file__).parents[1] / "tests/fixtures/debezium"
_MARKER: Final = "zz_marker"
_PATIENCE_SECONDS: Final = 300

_COMMON: Final = {
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "offset.flush.interval.ms": "60000",
    "topic.prefix": "server",
}
_WHOLE: Final = {"skipped.operations": "none", "message.key.columns": "shop.keyless:a"}
_AVRO: Final = "avro"
_PLAIN: Final = "defaults"
"""The configuration of which Kafka's JsonConverter is left as it is."""
CONFIGURATIONS: Final[Mapping[str, Mapping[str, str]]] = {
    _PLAIN: {},
    "text": {
        **_WHOLE,
        "decimal.handling.mode": "string",
        "time.precision.mode": "connect",
        "binary.handling.mode": "base64",
        "interval.handling.mode": "string",
        "hstore.handling.mode": "map",
        "bigint.unsigned.handling.mode": "precise",
        "enable.time.adjuster": "false",
    },
    "double": {
        **_WHOLE,
        "decimal.handling.mode": "double",
        "time.precision.mode": "adaptive_time_microseconds",
        "binary.handling.mode": "hex",
        "include.unknown.datatypes": "true",
    },
    "isostring": {**_WHOLE, "time.precision.mode": "isostring", "binary.handling.mode": "base64-url-safe"},
    _AVRO: {**_WHOLE, "schema.name.adjustment.mode": "avro", "field.name.adjustment.mode": "avro"},
    "unwrapped": {
        **_WHOLE,
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
        "transforms.unwrap.replace.null.with.default": "false",
    },
}


class Recorded(ABC):
    """A database that is recorded. ``with`` starts and ends it."""

    name: str
    connector: str
    configurations: Mapping[str, Mapping[str, str]] = CONFIGURATIONS

    @abstractmethod
    def run(self, script: str) -> None:
        """Run a script of SQL."""

    @abstractmethod
    def properties(self, number: int) -> dict[str, str]:
        """Return what the connector number so and so needs to find the database."""

    @abstractmethod
    def rows(self) -> dict[str, Any]:
        """Return each table's columns with their types, and its rows, values as text."""

    @abstractmethod
    def __enter__(self) -> Self:
        """Start the database."""

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """End it."""


class PostgreSQL(Recorded):
    """PostgreSQL with the plug-in pgoutput."""

    name = "postgresql"
    connector = "io.debezium.connector.postgresql.PostgresConnector"
    configurations: Mapping[str, Mapping[str, str]] = {
        **CONFIGURATIONS,
        "nanoseconds": {**_WHOLE, "time.precision.mode": "nanoseconds"},
    }

    def __enter__(self) -> Self:
        """Start it."""
        self._server = PostgresServer().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._server.close()

    def run(self, script: str) -> None:
        """Run a script of SQL, each statement in a transaction of its own."""
        self._server.execute(script)

    def properties(self, number: int) -> dict[str, str]:
        """Return the server's address, and a slot and a publication for one connector alone."""
        return {
            "database.hostname": self._server.host,
            "database.port": str(self._server.port),
            "database.user": USER,
            "database.password": "none",
            "database.dbname": "postgres",
            "plugin.name": "pgoutput",
            "slot.name": f"slot{number}",
            "publication.name": f"publication{number}",
            "schema.include.list": "shop",
        }

    def rows(self) -> dict[str, Any]:
        """Request all tables."""
        columns = json.loads(
            self._server.execute(
                "SELECT json_agg(json_build_array(c.relname, a.attname, format_type(a.atttypid, a.atttypmod))"
                " ORDER BY c.relname, a.attnum) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
                " WHERE c.relnamespace = 'shop'::regnamespace AND c.relkind = 'r' AND a.attnum > 0"
                " AND NOT a.attisdropped"
            )
        )
        tables: dict[str, Any] = {}
        for table, column, kind in columns:
            tables.setdefault(table, {"columns": {}})["columns"][column] = kind
        for table, known in tables.items():
            shown = ", ".join(self._text(f'"{name}"', kind) for name, kind in known["columns"].items())
            script = f'SELECT json_agg(json_build_array({shown})) FROM shop."{table}"'
            known["rows"] = json.loads(
                self._server.execute(f"SET timezone = 'UTC'; SET intervalstyle = 'iso_8601'; {script}")
                or "[]"
            )
        return tables

    @staticmethod
    def _text(column: str, kind: str) -> str:
        if kind.endswith("[]"):
            return f"to_json({column})::text"
        casts = {"money": "::numeric", "hstore": "::json"}
        return f"{column}{casts.get(kind, '')}::text"


class MySQL(Recorded):
    """MySQL with a binlog of rows."""

    name = "mysql"
    connector = "io.debezium.connector.mysql.MySqlConnector"

    def __enter__(self) -> Self:
        """Start it."""
        self._server = MySqlServer().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._server.close()

    def run(self, script: str) -> None:
        """Run a script of SQL."""
        self._server.execute(script)

    def properties(self, number: int) -> dict[str, str]:
        """Return the server's address, and an id among its replicas."""
        return {
            "database.hostname": self._server.host,
            "database.port": str(self._server.port),
            "database.user": mysql.USER,
            "database.server.id": str(100 + number),
            "database.include.list": "shop",
            "snapshot.locking.mode": "none",  # nothing is written meanwhile
            "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
        }

    def rows(self) -> dict[str, Any]:
        """Request all tables."""
        columns = json.loads(
            self._server.execute(
                "SELECT JSON_ARRAYAGG(JSON_ARRAY(table_name, column_name, column_type)) FROM"
                " (SELECT * FROM information_schema.columns WHERE table_schema = 'shop'"
                " ORDER BY table_name, ordinal_position LIMIT 10000) AS known"
            )
        )
        tables: dict[str, Any] = {}
        for table, column, kind in columns:
            tables.setdefault(table, {"columns": {}})["columns"][column] = kind
        for table, known in tables.items():
            shown = ", ".join(self._text(f"`{name}`", kind) for name, kind in known["columns"].items())
            script = f"SELECT JSON_ARRAYAGG(JSON_ARRAY({shown})) FROM shop.`{table}`"
            found = self._server.execute(f"SET time_zone = '+00:00'; {script}")
            known["rows"] = json.loads(found) or []
        return tables

    @staticmethod
    def _text(column: str, kind: str) -> str:
        name = kind.partition("(")[0]
        if "blob" in name or "binary" in name:
            return f"HEX({column})"
        if name in ("geometry", "point", "linestring", "polygon", "geomcollection"):
            return f"CONCAT(ST_SRID({column}), ' ', HEX(ST_AsBinary({column}, 'axis-order=long-lat')))"
        if name == "bit":
            return f"CAST({column} + 0 AS CHAR)"
        if name == "float":
            return f"CAST(CAST({column} AS DOUBLE) AS CHAR)"
        return f"CAST({column} AS CHAR)"


DATABASES: Final[Mapping[str, Callable[[], Recorded]]] = {"postgresql": PostgreSQL, "mysql": MySQL}


def record(database: Recorded, registry: RegistryServer) -> None:
    """Record one database's connector in all configurations."""
    folder = FIXTURES / database.name
    jars = debezium_relational_jars()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "records").mkdir()
        java = find_java()
        compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-d", name]
        path = ":".join(map(str, jars.glob("*.jar")))
        run_program([*compiler, "-cp", path, str(_SOURCE)], f"compiling {_SOURCE.name}")
        database.run((folder / "snapshot.sql").read_text())
        (work / "runs.json").write_text(json.dumps(_runs(database, registry)))
        arguments = [str(work / "runs.json"), _MARKER, str(work / "records")]
        command = [java, "-Xmx1g", "-XX:+UseSerialGC", "-cp", f"{name}:{jars}/*", _SOURCE.stem, *arguments]
        with (work / "log").open("w") as log:
            recorder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            _wait_for("started", database, recorder, work / "log")
            database.run((folder / "stream.sql").read_text())
            _wait_for("done", database, recorder, work / "log")
            recorder.wait(_PATIENCE_SECONDS)
        finally:
            recorder.kill()
            recorder.wait()
        lines = {one: (work / "records" / one).read_text().splitlines() for one in database.configurations}
        _write(folder / "records.jsonl.gz", _packed(lines, registry))
        _write(folder / "rows.json.gz", [json.dumps(database.rows(), ensure_ascii=False)])


def _runs(database: Recorded, registry: RegistryServer) -> dict[str, Any]:
    """Return what each configuration runs with."""
    runs = {
        one: {
            "properties": {
                **_COMMON,
                **database.properties(number),
                **own,
                "name": one,
                "custom.metric.tags": f"run={one}",  # or their metrics have one name
                "connector.class": database.connector,
            },
            "json": {"replace.null.with.default": "false"},
        }
        for number, (one, own) in enumerate(database.configurations.items(), 1)
    }
    runs[_PLAIN]["json"] = {}
    runs[_AVRO]["converter"] = {
        "type": "io.apicurio.registry.utils.converter.AvroConverter",
        "apicurio.registry.url": f"http://{registry.host}:{registry.port}/apis/registry/v2",
        "apicurio.registry.auto-register": "true",
        "apicurio.registry.as-confluent": "true",
        "apicurio.registry.headers.enabled": "false",
        "apicurio.registry.use-id": "contentId",
    }
    return runs


def _wait_for(word: str, database: Recorded, recorder: subprocess.Popen[str], log: Path) -> None:
    """Wait until each configuration has said something."""
    missing = set(database.configurations)
    assert recorder.stdout is not None
    while missing:
        line = recorder.stdout.readline().split()
        if not line:
            raise SystemExit(f"Debezium ended early:\n{log.read_text()[-5000:]}")
        if line[0] == word:
            missing.discard(line[1])
            say(" ".join(line))


def _packed(lines: Mapping[str, Sequence[str]], registry: RegistryServer) -> Iterator[str]:
    """Write each schema once, and the common parts of configurations next to each other, to compress well.

    The order of a configuration's records is kept within each topic.
    """
    texts: dict[str, int] = {}
    ids: set[int] = set()
    for _, _, run, one in sorted(_numbered(lines), key=lambda found: found[:3]):
        headers = {"headers": one["headers"]} if one["headers"] else {}
        sides = {}
        if run == _AVRO:
            sides = {side: one[f"other_{side}"] for side in ("key", "value")}
            ids |= {
                int.from_bytes(base64.b64decode(text)[1:5]) for text in sides.values() if text is not None
            }
            yield json.dumps({"run": run, "topic": one["topic"], **sides, **headers})
            continue
        for side in ("key", "value"):
            schema, sides[side] = _schema_and_payload(one[side], one[f"plain_{side}"])
            if schema is not None and schema not in texts:
                yield json.dumps({"schema": schema}, ensure_ascii=False)
            if schema is not None:
                sides[side] = [texts.setdefault(schema, len(texts)), sides[side]]
        yield json.dumps({"run": run, "topic": one["topic"], **sides, **headers}, ensure_ascii=False)
    for schema_id in sorted(ids):
        with urllib.request.urlopen(f"{registry.url}/schemas/ids/{schema_id}") as answer:  # noqa: S310  # our own
            yield json.dumps({"id": schema_id, "avro": json.load(answer)["schema"]}, ensure_ascii=False)


def _numbered(lines: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, int, str, Any]]:
    """Yield topic, number in it, configuration and content of each record."""
    for run, own in lines.items():
        counts: Counter[str] = Counter()
        for line in own:
            one = json.loads(line)
            yield one["topic"], counts[one["topic"]], run, one
            counts[one["topic"]] += 1


def _schema_and_payload(text: str | None, plain: str | None) -> tuple[str | None, str | None]:
    """Return a record's schema and payload, each as written.

    Args:
        text: With its schema.
        plain: Without.
    """
    if text is None:
        return None, None
    head, middle = '{"schema":', ',"payload":'
    _, end = json.JSONDecoder().raw_decode(text, len(head))
    schema, payload = text[len(head) : end], text[end + len(middle) : -1]
    if text != f"{head}{schema}{middle}{payload}" + "}" or payload != (plain or "null"):
        raise SystemExit(f"JsonConverter wrote something else:\n{text}\n{plain}")
    return schema, payload


def _write(path: Path, lines: Iterable[str]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content, mtime=0))
    say(f"{path}: {path.stat().st_size >> 10} KiB")


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the databases that are named, all of them by default."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("database", nargs="?", choices=list(DATABASES), help="default: each of them")
    chosen = parser.parse_args(arguments).database
    for name in [chosen] if chosen else DATABASES:
        with RegistryServer() as registry, DATABASES[name]() as database:
            record(database, registry)


if __name__ == "__main__":
    main()
