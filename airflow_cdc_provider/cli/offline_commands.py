"""``airflow cdc events`` and ``airflow cdc rows``: print recordings, or events of captured changes."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airflow_cdc_provider.cli.live_commands import print_events
from airflow_cdc_provider.cli.running import command, read_connector, wrong_usage
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions


@command
def events(args: Namespace) -> None:
    """Print the events of a recording or of captured changes, in publishing order."""
    from airflow_cdc_provider.jobs.offline import recordings as offline

    if args.from_lake == bool(args.input):
        raise wrong_usage("either --input PATH or --from-lake is required")
    if args.from_lake:
        if args.schema:
            raise wrong_usage("--schema is only for recordings: the lake has the schema history")
        tables = (args.table,) if args.table else ()
        print_events(read_connector(args.connector), _now_ns(args), args.after_batch, tables)
        return
    if args.table or args.after_batch:
        raise wrong_usage("--table and --after-batch require --from-lake")
    _print(args, offline.event_lines)


@command
def rows(args: Namespace) -> None:
    """Print the reconciled final rows."""
    from airflow_cdc_provider.jobs.offline import recordings as offline

    _print(args, offline.row_lines)


def _print(args: Namespace, lines_of: Callable[..., Iterator[Any]]) -> None:
    from airflow_cdc_provider.events.encoder import text_of
    from airflow_cdc_provider.jobs.events.skipped_records import SkippedRecords
    from airflow_cdc_provider.jobs.offline import recordings as offline

    connector = read_connector(args.connector)
    if isinstance(connector.source, ScyllaOptions):
        raise wrong_usage("ScyllaDB has no recordings: use events --from-lake")
    if isinstance(connector.source, DebeziumOptions):
        raise wrong_usage("topics have no recordings: use airflow cdc check")
    recording = offline.Recording(Path(args.input), args.schema, _now_ns(args), args.table)
    skipped = SkippedRecords(strict=connector.source.strict)
    for lines in lines_of(connector, recording, skipped):
        sys.stdout.buffer.write(text_of(lines))
    sys.stdout.flush()
    for line in skipped.report():
        sys.stderr.write(f"{line}\n")


def _now_ns(args: Namespace) -> int:
    return time.time_ns() if args.at is None else int(args.at) * 1_000_000_000
