"""The channel by which tasks report their rows takes little of who doesn't know its token."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from typing import Any, cast

import pytest

from airflow_cdc_provider.jobs.metrics import scanned as module
from airflow_cdc_provider.jobs.metrics.scanned import Counted, ScannedRows
from airflow_cdc_provider.sources.contract import Reader
from tests.bounded import bounded


class Spark:
    master = "local[1]"


def channel() -> ScannedRows:
    return ScannedRows(cast(Any, Spark()), None)


def counted(rows: ScannedRows) -> Counted:
    return cast(Counted, rows.counted(cast(Reader, None), 1))


def report(of: Counted, table: str) -> None:
    with socket.create_connection(of.address, 5) as sender:
        for line in ([of.token, 1, 0, 0], [table, 5, ""], []):
            sender.sendall(json.dumps(line).encode() + b"\n")
        sender.settimeout(5)
        assert sender.recv(1) == b"", "all is processed"


def test_who_holds_connections_open_does_not_hold_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 0.3)
    before = threading.active_count()
    with channel() as rows:
        one = counted(rows)
        held = [socket.create_connection(one.address, 5) for _ in range(200)]
        for sender in held[:10]:
            sender.send(b" ")
        assert threading.active_count() - before <= module._MOST_UNKNOWN + 2
        deadline = time.monotonic() + 10
        while rows.tally.rows() != {"k.a": 5}:
            assert time.monotonic() < deadline
            with suppress(ConnectionError):  # refused while many others wait
                report(one, "k.a")
        for sender in held:
            sender.close()


def test_whatever_is_sent_without_the_token_costs_little() -> None:
    with channel() as rows:
        one = counted(rows)
        report(one, "k.a")
        texts: tuple[Any, ...] = (
            "é" * 32,
            "\ud800",
            one.token[:-1],
            one.token + "0",
            "",
            None,
            7,
            [],
            {"a": 1},
        )
        lines = [json.dumps([token, 1, 0, 0]).encode() for token in texts]
        lines += [
            '["\u00e9", 1, 0, 0]'.encode(),
            b"[" * 4000,
            b"1" * 4000,
            b"7",
            b"null",
            b"{}",
            b"\xff" * 99,
        ]
        with bounded(seconds=1, mebibytes=32):
            for line in (*lines, b"x" * (8 << 20)):
                with socket.create_connection(one.address, 5) as sender:
                    sender.settimeout(5)
                    try:
                        sender.sendall(line + b"\n" + b'["k.b", 1, ""]\n')
                        sender.recv(1)
                    except OSError:
                        continue
        assert rows.tally.rows() == {"k.a": 5}
