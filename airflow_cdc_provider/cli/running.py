"""Error handling of commands: one message instead of a traceback, exit codes, closed pipes."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TextIO

from airflow_cdc_provider.connector import Connector, load_connector
from airflow_cdc_provider.exceptions import CdcError, printable
from airflow_cdc_provider.masking import masked

if TYPE_CHECKING:
    from airflow_cdc_provider.migration.offsets.conversion import ConnectOffsets


def command(function: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    """Decorate a command: a :class:`CdcError` becomes one line on stderr and exit code 1."""

    @functools.wraps(function)
    def run(args: Namespace) -> None:
        _redirect_logs_to_stderr()
        # Like Airflow's connection commands: also look up connections in its metadata database.
        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
        try:
            function(args)
            sys.stdout.flush()
        except CdcError as error:
            write(f"error: {error}", sys.stderr)
            raise SystemExit(1) from error
        except BrokenPipeError:
            # The reader (head, less) closed the pipe. Python would raise again when it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return run


def write(line: str, to: TextIO | None = None) -> None:
    """Print one printable line, to stdout by default: names and texts of a source can't add one."""
    (to or sys.stdout).write(f"{printable(masked(line))}\n")


def write_data(value: object) -> None:
    """Print data as JSON, which a mask must not change: an offset may be edited and stored.

    Texts of errors in it were masked when the errors were made.
    """
    sys.stdout.write(f"{json.dumps(value, sort_keys=True)}\n")


def wrong_usage(message: str) -> SystemExit:
    """Print a usage error to stderr and return the exception with argparse's exit code."""
    write(f"error: {message}", sys.stderr)
    return SystemExit(2)


def _redirect_logs_to_stderr() -> None:
    """Redirect Airflow's stdout log handlers to stderr: stdout is reserved for the command's output."""
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    redirect_stdout_log_handlers_to_stderr()
    # Driver failures are raised as one CdcError; the driver itself logs a traceback per attempt.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)


def read_connector(path: str) -> Connector:
    """Load a declaration or a Debezium .properties file, whose ignored properties are reported on stderr.

    Raises:
        ConfigurationError: The file is missing or invalid.
    """
    if not path.endswith(".properties"):
        return load_connector(path)
    from airflow_cdc_provider.migration.settings_file import load_connector_file

    imported = load_connector_file(path)
    for note in imported.notes:
        write(f"note: {note}", sys.stderr)
    return imported.connector


def connect_offsets_of(connector: Connector) -> ConnectOffsets:
    """Return the conversion of offsets that another connector of the same source has stored."""
    from airflow_cdc_provider.hooks._of_connector import hook_for
    from airflow_cdc_provider.migration.offsets.conversion import connect_offsets

    def open_source() -> AbstractContextManager[Any]:
        hook = hook_for(connector)
        assert isinstance(hook, AbstractContextManager)
        return hook

    return connect_offsets(connector, open_source)
