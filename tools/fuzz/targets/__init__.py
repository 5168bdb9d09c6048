"""Targets, a module each: ``run`` gives bytes to readers and verifies promises, ``seeds`` yields inputs."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

CORPORA: Final = Path(__file__).resolve().parents[3] / "tests" / "fixtures" / "fuzz"
NAMES: Final = ("cassandra", "bson", "vitess", "scylla", "avro", "protobuf", "json")


class Target(Protocol):
    """A module of this package."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def corpus(name: str) -> list[bytes]:
    """Return the inputs of the tests, which :mod:`..__main__` found: a file per target, an input per line."""
    return [base64.b64decode(line) for line in (CORPORA / f"{name}.txt").read_bytes().split()]


def load(name: str) -> Target:
    """Import a target, with all that it imports."""
    return cast("Target", import_module(f"{__name__}.{name}"))
