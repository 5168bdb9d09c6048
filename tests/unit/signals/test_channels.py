"""Which channels a declaration opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.signals.channels import ChannelContext, open_channels
from airflow_cdc_provider.signals.signal import ReceivedSignal, Signal

OWN = f"{__name__}:Mailbox"


class Mailbox:
    """A channel as a user writes one."""

    name = "mailbox"

    def __init__(self, connector: str, settings: Mapping[str, Any]) -> None:
        self.text = f"{connector} {settings['greeting']}"

    def receive(self) -> Sequence[ReceivedSignal]:
        """Return one signal."""
        return [Signal("1", "log", {"message": self.text}, self.name)]

    def done(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Wrong:
    """No channel."""

    def __init__(self, connector: str, settings: Mapping[str, Any]) -> None:
        """Do nothing."""


def places(folder: Path | None) -> ChannelContext:
    return ChannelContext(folder, "file-signals.txt", "shop", {"greeting": "hello"})


@pytest.mark.covers("MDB-SIG-02")
def test_a_channel_of_ones_own_is_built_with_its_settings(tmp_path: Path) -> None:
    channels = open_channels(["source", "file", "airflow", OWN], places(tmp_path))
    assert [channel.name for channel in channels] == ["file", "airflow", "mailbox"]
    (signal,) = channels[-1].receive()
    assert isinstance(signal, Signal)
    assert signal.data == {"message": "shop hello"}


def test_a_job_without_a_folder_has_no_channel_of_airflow() -> None:
    assert open_channels(["airflow", "source"], places(None)) == []


@pytest.mark.parametrize("name", ["no.such:Thing", f"{__name__}:Nothing", f"{__name__}:Wrong"])
def test_a_class_that_is_no_channel_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="channel"):
        open_channels([name], places(None))


def declared(source: dict[str, Any] | None = None, **sections: Any) -> Connector:
    return Connector.from_dict({"name": "shop", "source": {"type": "mongodb", **(source or {})}, **sections})


def test_channels_that_need_more_than_python_are_handed_in() -> None:
    mailbox = Mailbox("shop", {"greeting": "hello"})
    assert open_channels(["source", "kafka"], places(None), {"kafka": lambda: mailbox}) == [mailbox]


@pytest.mark.parametrize("channel", ["jmx", "pigeon", "a b:C"])
def test_names_of_no_channel_are_refused_with_what_there_is(channel: str) -> None:
    with pytest.raises(ConfigurationError, match=r"signals\.channels"):
        declared(signals={"channels": [channel]})


def test_the_signal_collection_must_be_in_what_the_stream_watches() -> None:
    scope = {"scope": "database", "target": "shop"}
    assert declared(scope, signals={"collection": "shop.signals"}).signals.collection == "shop.signals"
    with pytest.raises(ConfigurationError, match="outside the scope of the change stream"):
        declared(scope, signals={"collection": "other.signals"})
    one = {"scope": "collection", "target": "shop.orders"}
    with pytest.raises(ConfigurationError, match="scope deployment or database"):
        declared(one, signals={"collection": "shop.signals"})
    cassandra = {"name": "c", "source": {"type": "cassandra"}, "signals": {"collection": "a.b"}}
    with pytest.raises(ConfigurationError, match=r"signals\.collection is not supported for source"):
        Connector.from_dict(cassandra)
    with pytest.raises(ConfigurationError, match=r"requires a collection for watermarks"):
        declared(snapshot={"incremental": {"watermarks": "insert_insert"}})
