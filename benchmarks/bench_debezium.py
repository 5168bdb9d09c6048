"""Commit-log segments to JSON events, against Debezium for Cassandra on the same files.

A real node writes rows of about 217 bytes into segments of 32 MiB. Debezium's connector (its jars from Maven
Central) then reads a copy of the segments with their index, and makes of each event the bytes of key and
value by Kafka's JsonConverter without schemas; nothing is sent. We make the same events of the same segments.
Before figures count, keys and values must be the same texts, but for the moment at which an event was made.

CPU seconds of the whole process count. Of Debezium's those of the events after the first third, when its code
is compiled; of ours the best round after a first one.

Usage: python benchmarks/bench_debezium.py [--rows 300000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import yaml

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import encode
from airflow_cdc_provider.sources.cassandra.events import envelope as cassandra_envelope
from airflow_cdc_provider.sources.cassandra.events.decode import EventDecoder
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.encoding import converters_of, topics_of
from benchmarks.bench_commit_log import OurReader, write_rows
from server_kit import CassandraServer
from server_kit.cassandra_releases import java_flags
from server_kit.jars import CASSANDRA_VERSION, DEBEZIUM_VERSION, debezium_jars
from server_kit.ports import free_port
from server_kit.programs import find_java, run_program

_SOURCE = Path(__file__).with_name("DebeziumEvents.java")
_CLASS = "io.debezium.connector.cassandra.DebeziumEvents"
_MADE_AT = re.compile(r'(?<=\t{"ts_ms":)\d+')
_STARTED = 3


def main() -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        CassandraServer(commitlog_segment_size_mib=32, cdc_total_space_mib=4096, heap_mib=1024) as server,
    ):
        table = write_rows(server, arguments.rows)
        ours = OurEvents(server.cdc_raw, table)
        folder = Path(scratch)
        texts = folder / "events"
        debezium(server, folder / "checked", ours.reader.segments, arguments.rows, arguments.rows, texts)
        compare(ours.texts(), texts)
        step = arguments.rows // _STARTED
        marks = debezium(server, folder / "timed", ours.reader.segments, arguments.rows, step, None)
        ours.time()
        seconds = min(ours.time() for _ in range(arguments.rounds))
    events = marks[-1][0] - marks[0][0]
    theirs = events / (marks[-1][1] - marks[0][1])
    per_second = arguments.rows / seconds
    print(f"{arguments.rows} events, the same texts from both")
    print(f"{'':30}events per CPU s   ratio")
    print(f"{f'Debezium {DEBEZIUM_VERSION}':30}{theirs:16,.0f}   {1:5.1f}")
    print(f"{'ours':30}{per_second:16,.0f}   {per_second / theirs:5.1f}")


class OurEvents:
    """The same events by this package."""

    def __init__(self, folder: Path, table: TableSchema) -> None:
        self.reader = OurReader(folder, table)
        self.table = table
        self.connector = Connector.from_dict(
            {"name": "cdc", "source": {"type": "cassandra"}, "publish": {"schemas": False}}
        )
        self.converters = converters_of(self.connector)
        self.options = cassandra_envelope.EnvelopeOptions(
            topics=topics_of(self.connector),
            version=DEBEZIUM_VERSION,
            cluster="server_kit",
            tombstones=False,
            now_ns=time.time_ns(),
        )
        self.decoder = EventDecoder(table)

    def events(self) -> Iterator[pa.RecordBatch]:
        """Make the events of all segments: batches with key and value as bytes."""
        for changes in self.reader.capture():
            decoded = self.decoder.decode(changes)
            if decoded.undecodable:
                sys.exit("some changes could not be decoded")
            envelope = cassandra_envelope.build(
                decoded.events, self.table.keyspace, self.table.name, self.options
            )
            yield encode(envelope, self.converters)

    def time(self) -> float:
        """Return the CPU seconds of one round."""
        before = time.process_time()
        for _ in self.events():
            pass
        return time.process_time() - before

    def texts(self) -> Iterator[str]:
        """Yield key and value of each event, with a tab between."""
        for batch in self.events():
            for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
                yield f"{key}\t{value}"


def debezium(
    server: CassandraServer, folder: Path, segments: list[str], events: int, every: int, output: Path | None
) -> list[tuple[int, float]]:
    """Let Debezium read copies of segments; return counts of events and CPU seconds since its start."""
    for name in ("raw", "relocated", "offsets", "store"):
        (folder / name).mkdir(parents=True)
    for segment in map(Path, segments):
        index = segment.with_name(f"{segment.stem}_cdc.idx")
        shutil.copy(segment, folder / "raw")
        (folder / "raw" / index.name).write_text(f"{index.read_text().split()[0]}\nCOMPLETED")
    settings = {**yaml.safe_load(server.yaml.read_text()), "cdc_raw_directory": str(folder / "raw")}
    (folder / "cassandra.yaml").write_text(yaml.safe_dump(settings))
    (folder / "driver.conf").write_text(
        f'datastax-java-driver {{ basic.contact-points=["{server.host}:{server.port}"]\n'
        "basic.load-balancing-policy.local-datacenter=datacenter1 }\n"
    )
    properties = {
        "connector.name": "bench",
        "topic.prefix": "cdc",
        "cassandra.config": folder / "cassandra.yaml",
        "cassandra.driver.config.file": folder / "driver.conf",
        "commit.log.relocation.dir": folder / "relocated",
        "offset.backing.store.dir": folder / "offsets",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "kafka.producer.bootstrap.servers": "127.0.0.1:1",
        "snapshot.mode": "NEVER",
        "http.port": free_port(),
        "commit.log.marked.complete.poll.interval.ms": 100,
        "cdc.dir.poll.interval.ms": 100,
        "poll.interval.ms": 10,
    }
    (folder / "cdc.properties").write_text("".join(f"{k}={v}\n" for k, v in properties.items()))
    jars = debezium_jars()
    compiled = folder / "classes"
    run_program(
        [
            *(find_java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-d", str(compiled)),
            *("-cp", ":".join(map(str, jars.glob("*.jar"))), str(_SOURCE)),
        ],
        "compiling DebeziumEvents.java",
    )
    printed = run_program(
        [
            find_java(),
            *java_flags(CASSANDRA_VERSION),
            *("-Xms1g", "-Xmx1g", "-XX:+UseSerialGC", f"-Dcassandra.storagedir={folder / 'store'}"),
            *("-cp", f"{compiled}:{jars}/*", _CLASS, str(folder / "cdc.properties")),
            *(str(events), str(every), str(output or "-")),
        ],
        "making events with Debezium",
    )
    lines = [line.split() for line in printed.splitlines() if line.startswith("cpu_ns ")]
    return [(int(count), int(nanoseconds) / 1e9) for _, count, nanoseconds in lines]


def compare(ours: Iterator[str], theirs: Path) -> None:
    """Exit with an error unless both have the same events in the same order."""
    with theirs.open() as lines:
        for number, (our, their) in enumerate(zip(ours, lines, strict=True)):
            if comparable(our) != comparable(their.rstrip("\n")):
                sys.exit(f"event {number} differs:\nours    {our}\nDebezium {their}")


def comparable(text: str) -> str:
    """Remove the event's time of creation."""
    return _MADE_AT.sub("", text)


if __name__ == "__main__":
    main()
