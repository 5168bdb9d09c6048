"""Targets, a module each: ``run`` gives bytes to real readers and verifies promises, ``seeds`` yields inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Final, Protocol, cast

NAMES: Final = ("cassandra", "bson", "vitess", "scylla", "avro", "protobuf", "json")


class Target(Protocol):
    """A module of this package."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def load(name: str) -> Target:
    """Import a target, with all that it imports."""
    return cast("Target", import_module(f"{__name__}.{name}"))
