"""Channels: the ways by which signals reach a job.

A channel is asked for what arrived, again and again while the job runs, always by one thread. What it gave is
committed in the lake before :meth:`Channel.done` tells it so; if the job dies in between, the channel gives
the same again, with the same ids, and nothing is done twice.

Four come with the package. ``file`` and ``airflow`` are here (:mod:`.files`), ``kafka`` stands where brokers
are known and is handed in; ``source``, documents or rows in a table of the captured database, arrives with
the changes themselves and needs no channel object. Others are named as ``package.module:Class`` and built
with their settings.

A channel that can't take back what it gave, as a topic, says at which place it stands
(:class:`KeepsPlace`): that is committed together with what it gave.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.signals.files import FileChannel, FolderChannel
from airflow_cdc_provider.signals.names import AIRFLOW, FILE
from airflow_cdc_provider.signals.signal import Arrived


class ChannelRefused(ConfigurationError):
    """A channel can never be read as it is declared: the job ends."""


@runtime_checkable
class Channel(Protocol):
    """A way by which signals come."""

    name: str

    def receive(self) -> Sequence[Arrived]:
        """Return what arrived and is not done yet, oldest first, empty for nothing. Returns at once.

        Raises:
            ChannelRefused: It never can be read.
            CdcError: It can't be read now; the job tells that and asks again later.
        """
        ...

    def done(self) -> None:
        """Let go of all that the last :meth:`receive` returned: it is committed."""
        ...

    def close(self) -> None:
        """End what it holds open."""
        ...


@runtime_checkable
class KeepsPlace(Protocol):
    """A channel that goes on where it is told to, in place of letting go of what it gave."""

    @property
    def place(self) -> Mapping[str, Any] | None:
        """Where to go on if all that ``receive`` returned is committed, as JSON; None before it has one."""
        ...

    def resume(self, place: Mapping[str, Any] | None) -> None:
        """Go on at a committed place, None for none; called before each time that signals are taken in."""
        ...


@dataclass(frozen=True)
class ChannelPlaces:
    """Where the channels of one connector are.

    Args:
        folder: What Airflow hands over signals in; None where the job was started without one.
        file: The file of channel ``file``; a relative path lies beside that folder.
        connector: The connector's name, which channels of a user's own get.
        settings: What channels of a user's own get besides.
    """

    folder: Path | None
    file: str
    connector: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def open_channels(
    names: Sequence[str], places: ChannelPlaces, makers: Mapping[str, Callable[[], Channel]] | None = None
) -> list[Channel]:
    """Open the channels that a declaration names, but ``source``.

    Args:
        names: Their names.
        places: Where they are.
        makers: What makes those by name that need more than Python.

    Raises:
        ConfigurationError: One can't be built.
    """
    opened: list[Channel] = []
    for name in names:
        if makers and name in makers:
            opened.append(makers[name]())
        elif name == FILE:
            beside = places.folder.parent if places.folder is not None else Path()
            opened.append(FileChannel(beside / places.file))
        elif name == AIRFLOW and places.folder is not None:
            opened.append(FolderChannel(places.folder))
        elif ":" in name:
            opened.append(_build(name, places))
    return opened


def _build(name: str, places: ChannelPlaces) -> Channel:
    module, _, attribute = name.partition(":")
    try:
        built = getattr(importlib.import_module(module), attribute)(places.connector, dict(places.settings))
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"the signal channel {name} can't be built",
            expected="a class that takes the connector's name and its settings",
            found=str(error),
        ) from error
    if not isinstance(built, Channel):
        raise ConfigurationError(
            f"{name} is no signal channel", expected="name, receive(), done() and close()"
        )
    return built
