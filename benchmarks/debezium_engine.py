"""A connector of Debezium in its own engine, without Kafka: what it makes, and its CPU time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from server_kit.programs import find_java, run_program

_SOURCE: Final = Path(__file__).with_name("DebeziumEngineEvents.java")
_STARTED: Final = 3
_COMMON: Final = {
    "name": "bench",
    "tombstones.on.delete": "false",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "offset.flush.interval.ms": "60000",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}


class DebeziumEngine:
    """Runs a connector and counts its events. Key and value become JSON texts without schemas.

    Args:
        jars: Folder with the engine and the connector.
        folder: For its files.

    Attributes:
        texts: Key and value of each event of the newest run that kept them, with a tab between.
        per_second: Events per CPU second of the newest run, but for the first third, in which its code is
            compiled.
    """

    def __init__(self, jars: Path, folder: Path) -> None:
        self.texts = folder / "events"
        self.per_second = 0.0
        self._folder = folder
        classes = folder / "classes"
        java = find_java()
        compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-d", str(classes)]
        own_path = ["-cp", ":".join(map(str, jars.glob("*.jar"))), str(_SOURCE)]
        run_program([*compiler, *own_path], f"compiling {_SOURCE.name}")
        options = ["-Xms1g", "-Xmx1g", "-XX:+UseSerialGC", "-cp", f"{classes}:{jars}/*"]
        self._command = [java, *options, _SOURCE.stem]

    def start(
        self, properties: Mapping[str, str], topic: str, events: int, *, keep: bool
    ) -> subprocess.Popen[str]:
        """Start it; it prints ``ready`` at its first event of whatever topic.

        Args:
            properties: Of the connector.
            topic: Whose events count.
            events: After how many it ends.
            keep: Whether texts are written.
        """
        file = self._folder / "connector.properties"
        written = {**_COMMON, **properties}
        file.write_text("".join(f"{name}={value}\n" for name, value in written.items()))
        output = str(self.texts) if keep else "-"
        arguments = [str(file), topic, str(events), str(events // _STARTED), output]
        return subprocess.Popen([*self._command, *arguments], stdout=subprocess.PIPE, text=True)

    def finish(self, process: subprocess.Popen[str]) -> None:
        """Wait until it has all events."""
        printed, _ = process.communicate(timeout=600)
        if process.returncode:
            sys.exit(f"Debezium ended with {process.returncode}")
        marks = [line.split() for line in printed.splitlines() if line.startswith("cpu_ns ")]
        counts, cpu = [int(mark[1]) for mark in marks], [int(mark[2]) / 1e9 for mark in marks]
        self.per_second = (counts[-1] - counts[0]) / (cpu[-1] - cpu[0])


def record_texts(records: Iterator[pa.RecordBatch]) -> list[str]:
    """Return key and value of our records, with a tab between."""
    return [
        f"{key}\t{value}"
        for batch in records
        for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
    ]


def compare(ours: list[Any], theirs: list[Any]) -> None:
    """Exit with an error unless both outputs are equal."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one != other:
            sys.exit(f"event {number} differs:\nours    {one}\nDebezium {other}")
