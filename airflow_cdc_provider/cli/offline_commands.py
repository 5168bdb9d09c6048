"""``airflow cdc events`` and ``airflow cdc rows``: print recordings, or events of captured changes."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_cdc_provider.cli.live_commands import print_events
from airflow_cdc_provider.cli.running import command, read_connector, write, wrong_usage
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.registry import source_plugin

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.recordings import LinesOf, Recordings


@command
def events(args: Namespace) -> None:
    """Print the events of a recording or of captured changes, in publishing order."""
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
    _print(args, lambda recordings: recordings.event_lines)


@command
def rows(args: Namespace) -> None:
    """Print the reconciled final rows."""
    _print(args, lambda recordings: recordings.row_lines)


def _print(args: Namespace, lines_of: Callable[[Recordings], LinesOf]) -> None:
    from airflow_cdc_provider.events.encoder import text_of
    from airflow_cdc_provider.events.skipped_records import SkippedRecords
    from airflow_cdc_provider.sources.recordings import Recording

    connector = read_connector(args.connector)
    try:
        read = lines_of(source_plugin(connector.type).recordings())
    except ConfigurationError as error:
        raise wrong_usage(str(error)) from error
    recording = Recording(Path(args.input), args.schema, _now_ns(args), args.table)
    skipped = SkippedRecords(strict=connector.source.strict)
    for lines in read(connector, recording, skipped):
        sys.stdout.buffer.write(text_of(lines))
    sys.stdout.flush()
    for line in skipped.report():
        write(line, sys.stderr)


def _now_ns(args: Namespace) -> int:
    return time.time_ns() if args.at is None else int(args.at) * 1_000_000_000
