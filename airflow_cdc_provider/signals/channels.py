"""Channels through which signals reach a job.

While it runs, a job polls each channel repeatedly, always from one thread. It commits the received signals to
the lake before it calls :meth:`Channel.done`. If the job dies in between, the channel returns the same
signals again, with the same ids, and none is executed twice.

The package has four channels. ``file`` and ``airflow`` are defined here (:mod:`.files`); ``kafka`` is defined
in the Kafka package and passed in; ``source``, documents or rows in a table of the captured database, arrives
with the changes themselves and needs no channel object. Others are named as ``package.module:Class`` and
built with their settings.

A channel whose signals can't be deleted, such as a topic, has a position (:class:`ResumableChannel`), which
is committed together with the signals.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.secrets import resolve_secrets
from airflow_cdc_provider.signals.files import FileChannel, FolderChannel
from airflow_cdc_provider.signals.names import AIRFLOW, FILE
from airflow_cdc_provider.signals.signal import ReceivedSignal


class ChannelRefused(ConfigurationError):
    """A channel can't be read with its configuration: the job fails."""


@runtime_checkable
class Channel(Protocol):
    """A source of signals."""

    name: str

    def receive(self) -> Sequence[ReceivedSignal]:
        """Return the signals that arrived and aren't done yet, oldest first. Doesn't block.

        Raises:
            ChannelRefused: The channel can't be read with its configuration.
            CdcError: The channel can't be read now; the job logs that and polls again later.
        """
        ...

    def done(self) -> None:
        """Delete the signals that the last :meth:`receive` returned: they are committed."""
        ...

    def close(self) -> None:
        """Release the channel's resources."""
        ...


@runtime_checkable
class ResumableChannel(Protocol):
    """A channel that resumes at a given position, instead of deleting signals."""

    @property
    def position(self) -> Mapping[str, Any] | None:
        """The position after all signals that ``receive`` returned, as JSON; None before the first one."""
        ...

    def resume(self, position: Mapping[str, Any] | None) -> None:
        """Resume at a committed position, None if there is none; called before each poll."""
        ...


@dataclass(frozen=True)
class ChannelContext:
    """Locations and settings of one connector's channels.

    Args:
        folder: The folder of Airflow's signals; None if the job was started without one.
        file: The file of channel ``file``; a relative path is relative to that folder's parent.
        connector: The connector's name, for custom channels.
        settings: Further settings of custom channels.
    """

    folder: Path | None
    file: str
    connector: str
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)


def open_channels(
    names: Sequence[str], context: ChannelContext, builders: Mapping[str, Callable[[], Channel]] | None = None
) -> list[Channel]:
    """Open the channels that a declaration names, except ``source``.

    Args:
        names: Their names.
        context: Their locations and settings.
        builders: Builders, by name, of the channels with further dependencies.

    Raises:
        ConfigurationError: A channel can't be built.
    """
    opened: list[Channel] = []
    for name in names:
        if builders and name in builders:
            opened.append(builders[name]())
        elif name == FILE:
            parent = context.folder.parent if context.folder is not None else Path()
            opened.append(FileChannel(parent / context.file))
        elif name == AIRFLOW and context.folder is not None:
            opened.append(FolderChannel(context.folder))
        elif ":" in name:
            opened.append(_build(name, context))
    return opened


def _build(name: str, context: ChannelContext) -> Channel:
    module, _, attribute = name.partition(":")
    settings = resolve_secrets(context.settings, "signals.settings")
    try:
        built = getattr(importlib.import_module(module), attribute)(context.connector, settings)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"the signal channel {name} can't be built",
            expected="a class that takes the connector's name and its settings",
            found=str(error),
        ) from error
    if not isinstance(built, Channel):
        raise ConfigurationError(
            f"{name} is not a signal channel", expected="name, receive(), done() and close()"
        )
    return built
