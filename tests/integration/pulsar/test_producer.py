"""The producer on a real broker, read by Java's client: what DataStax's readers see, once and in order."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.exceptions import ConfigurationError, RecordsRejected
from airflow_cdc_provider.pulsar.errors import BrokersUnavailable
from airflow_cdc_provider.pulsar.producer import PulsarProducer
from airflow_cdc_provider.pulsar.settings import ClientSettings
from server_kit import PulsarServer
from server_kit.ports import free_port
from tests.integration.pulsar.records import KEYS, records, send

pytestmark = pytest.mark.integration
LEAD = "persistent://public/default/"


def producer_of(server: PulsarServer, name: str) -> PulsarProducer:
    return PulsarProducer(ClientSettings(server.service_url), name, "public/default")


def written(messages: list[dict[str, Any]]) -> list[int]:
    return [int(message["properties"]["writetime"]) for message in messages]


def test_java_reads_pairs_whose_key_is_the_messages(pulsar_server: PulsarServer) -> None:
    producer_of(pulsar_server, "pairs").send([records("data-ks.pairs", 0, 6)])
    found = pulsar_server.read(f"{LEAD}data-ks.pairs")
    assert [message["key"] for message in found] == [{"id": str(-1000 * n)} for n in range(6)]
    assert [message["value"] for message in found] == [
        None if n == 4 else {"name": f"n{n}"} for n in range(6)
    ]
    assert {message["encoding"] for message in found} == {"SEPARATED"}
    assert all(message["encoded"] for message in found), "the key is marked as base64"
    schema = pulsar_server.admin("schemas/public/default/data-ks.pairs/schema")
    assert schema["type"] == "KEY_VALUE"
    assert schema["properties"]["kv.encoding.type"] == "SEPARATED"


def test_a_killed_producer_leaves_no_doubles_and_no_gap(pulsar_server: PulsarServer) -> None:
    topic = "data-ks.killed"
    pulsar_server.admin(f"persistent/public/default/{topic}/partitions", 3, method="PUT")
    program = Path(__file__).with_name("records.py")
    command = [sys.executable, str(program), pulsar_server.service_url, topic, "killed"]
    sent = 0
    for rounds in (2, 5):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(rounds):
                sent = int(process.stdout.readline())
            process.kill()
    last = producer_of(pulsar_server, "killed")
    send(last, records(topic, 1000, sent + 2000))
    assert not last.undeduplicated

    by_key: dict[str, list[int]] = defaultdict(list)
    partitions = [pulsar_server.read(f"{LEAD}{topic}-partition-{number}") for number in range(3)]
    for number, messages in enumerate(partitions):
        for message in messages:
            by_key[message["text_key"]].append(int(message["properties"]["writetime"]))
            # String.hashCode of Java, by which its clients choose
            code = 0
            for letter in message["text_key"]:
                code = (31 * code + ord(letter)) & 0xFFFFFFFF
            assert (code & 0x7FFFFFFF) % 3 == number
    everything = sorted(n for numbers in by_key.values() for n in numbers)
    assert len(by_key) == KEYS
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "in order per key"
    assert everything == list(range(len(everything))), "none twice, none missing"
    assert len(everything) >= sent + 2000


def test_topics_and_schemas_that_alternate_lose_nothing(pulsar_server: PulsarServer) -> None:
    batches = [records(f"data-ks.many{n % 3}", n * 40, n * 40 + 40) for n in range(6)]
    wider = records("data-ks.many0", 240, 250)
    schema = wider["value_schema"][0].as_py()
    more = schema.replace('"fields":[', '"fields":[{"name":"more","type":["null","int"],"default":null},')
    values = [None if value is None else b"\0" + value for value in wider["value"].to_pylist()]
    for name, column in (("value_schema", [more] * 10), ("value", values)):
        wider = wider.set_column(wider.schema.get_field_index(name), name, pa.array(column))
    producer_of(pulsar_server, "many").send([*batches, wider, records("data-ks.many1", 250, 260)])
    found = [pulsar_server.read(f"{LEAD}data-ks.many{n}") for n in range(3)]
    assert written(found[0]) == [*range(40), *range(120, 160), *range(240, 250)]
    assert written(found[1]) == [*range(40, 80), *range(160, 200), *range(250, 260)]
    assert written(found[2]) == [*range(80, 120), *range(200, 240)]
    assert [m["value"]["name"] for m in found[0] if m["value"]][-1] == "n248"
    assert [set(m["value"]) for m in found[0] if m["value"]][-1] == {"more", "name"}


def test_a_broker_without_deduplication_is_reported(pulsar_server: PulsarServer) -> None:
    pulsar_server.admin("namespaces/public/plain", {}, method="PUT")
    pulsar_server.admin("namespaces/public/plain/deduplication", False, method="POST")
    plain = PulsarProducer(ClientSettings(pulsar_server.service_url), "plain", "public/plain")
    plain.send([records("t", 0, 5)])
    assert plain.undeduplicated == {"persistent://public/plain/t"}
    plain.send([records("t", 0, 5)])
    later = PulsarProducer(ClientSettings(pulsar_server.service_url), "plain", "public/plain")
    later.send([records("t", 5, 7)])
    assert later.undeduplicated == plain.undeduplicated
    assert written(pulsar_server.read("persistent://public/plain/t")) == [*range(5), *range(5), 5, 6]


def test_records_that_cannot_be_sent_raise_by_type(pulsar_server: PulsarServer) -> None:
    producer = PulsarProducer(ClientSettings(pulsar_server.service_url), "wrong", "public/nowhere")
    with pytest.raises(ConfigurationError):
        producer.send([records("t", 0, 1)])
    away = ClientSettings(f"pulsar://127.0.0.1:{free_port()}", "s3cret", timeout_seconds=2)
    assert "s3cret" not in repr(away)
    with pytest.raises(BrokersUnavailable, match="can't be reached"):
        PulsarProducer(away, "away", "public/default").send([records("t", 0, 1)])
    large = records("data-ks.large", 0, 3)
    values = [None, b"x" * (6 << 20), None]
    at = large.schema.get_field_index("value")
    with pytest.raises(RecordsRejected, match=r"topic data-ks\.large rejects records: found a record of"):
        producer_of(pulsar_server, "large").send(
            [large.set_column(at, "value", pa.array(values, pa.binary()))]
        )
    assert written(pulsar_server.read(f"{LEAD}data-ks.large")) == [0], "none behind it is stored"
