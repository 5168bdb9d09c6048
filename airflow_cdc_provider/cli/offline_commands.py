"""``airflow cdc events`` and ``airflow cdc rows``: recordings, without a server."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airflow_cdc_provider.cli.running import command, read_connector

_SHOWN_PLACES = 20


@command
def events(args: Namespace) -> None:
    """Print a recording's events in publishing order."""
    from airflow_cdc_provider.jobs import offline

    _print(args, offline.event_lines)


@command
def rows(args: Namespace) -> None:
    """Print the reconciled final state."""
    from airflow_cdc_provider.jobs import offline

    _print(args, offline.row_lines)


def _print(args: Namespace, lines_of: Callable[..., Iterator[Any]]) -> None:
    from airflow_cdc_provider.jobs import offline

    connector = read_connector(args.connector)
    now_ns = time.time_ns() if args.at is None else args.at * 1_000_000_000
    recording = offline.Recording(Path(args.input), args.schema, now_ns, getattr(args, "table", ""))
    damage = offline.Damage(strict=connector.source.advanced.strict)
    for lines in lines_of(connector, recording, damage):
        sys.stdout.buffer.write(offline.text_of(lines))
    sys.stdout.flush()
    if damage.places:
        for place in damage.places[:_SHOWN_PLACES]:
            sys.stderr.write(f"left out: {place}\n")
        if len(damage.places) > _SHOWN_PLACES:
            sys.stderr.write(f"left out: and {len(damage.places) - _SHOWN_PLACES} more\n")
        sys.stderr.write(f"summary: {len(damage.places)} places of the input were left out\n")
    if counted := +damage.skipped:
        counts = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(counted.items()))
        sys.stderr.write(f"skipped: {counts}\n")
