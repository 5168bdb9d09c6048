"""The protocol's bytes, against Google's Protobuf and by reading back what was written."""

from __future__ import annotations

import struct

import pytest

from airflow_cdc_provider.exceptions import CommitConflict, ConfigurationError
from airflow_cdc_provider.formats.protobuf_wire import read_message
from airflow_cdc_provider.pulsar import wire
from airflow_cdc_provider.pulsar.errors import BrokersUnavailable, error_of
from airflow_cdc_provider.pulsar.producer import partition_of
from airflow_cdc_provider.pulsar.settings import Address, ClientSettings


def test_a_message_has_its_key_in_base64_and_says_so() -> None:
    sent = wire.Message(7 << 31, "vz4=", None, wire.properties({"writetime": "5"}), 1)
    frame = wire.send(3, "shop.1", b"\0\0\0\1", sent)
    total, size = struct.unpack_from(">II", frame)
    assert total == len(frame) - 4
    command = read_message(frame[8 : 8 + size])
    assert command[1] == wire.SEND
    assert read_message(command[wire.SEND]) == {1: 3, 2: 7 << 31}  # type: ignore[arg-type]
    (metadata_size,) = struct.unpack_from(">I", frame, 8 + size)
    metadata = read_message(frame[12 + size :])
    assert metadata_size == len(frame) - 12 - size, "a deletion has no payload"
    assert metadata[6] == b"vz4="
    assert (metadata[17], metadata[25], metadata[2], metadata[16]) == (1, 1, 7 << 31, b"\0\0\0\1")
    assert read_message(metadata[4]) == {1: b"writetime", 2: b"5"}  # type: ignore[arg-type]


def test_a_schema_holds_both_parts_and_where_the_key_is() -> None:
    schema = read_message(wire.key_value_schema("t", "KEY", "VALUE!"))
    assert schema[3] == b"\0\0\0\3KEY\0\0\0\6VALUE!"
    assert (schema[1], schema[4]) == (b"KeyValue", wire.KEY_VALUE)
    assert read_message(schema[5]) == {1: b"kv.encoding.type", 2: b"SEPARATED"}  # type: ignore[arg-type]


def test_keys_choose_partitions_as_javas_clients_do() -> None:
    # String.hashCode by Java 17
    assert [partition_of(key, 2**31) for key in ("", "a", "vz4=")] == [0, 97, 3634253]


def test_errors_go_by_number() -> None:
    assert isinstance(error_of(4, "no", "sending"), ConfigurationError)
    assert isinstance(error_of(25, "fenced", "sending"), CommitConflict)
    assert isinstance(error_of(16, "busy", "sending"), BrokersUnavailable)
    assert isinstance(error_of(99, "new", "sending"), BrokersUnavailable)


def test_a_connection_is_checked_and_its_token_shown_nowhere() -> None:
    settings = ClientSettings.of_connection({"service_url": "pulsar+ssl://h", "token": "s3cret"})
    assert Address.of(settings.service_url) == Address("h", 6651, tls=True)
    assert "s3cret" not in repr(settings)
    with pytest.raises(ConfigurationError, match="service_url in its extra"):
        ClientSettings.of_connection({"token": "s3cret"})
    with pytest.raises(ConfigurationError, match="tokens") as error:
        ClientSettings.of_connection({"service_url": "pulsar://h", "tokens": "s3cret"})
    assert "s3cret" not in str(error.value)
