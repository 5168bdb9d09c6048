"""How commands end: one message instead of a traceback, an exit code, and quiet when the reader has gone."""

from __future__ import annotations

import functools
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable

from airflow_cdc_provider.connector import Connector, load_connector
from airflow_cdc_provider.exceptions import CdcError


def command(function: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    """Make a command of a function: its :class:`CdcError` becomes a line on stderr and exit code 1."""

    @functools.wraps(function)
    def run(args: Namespace) -> None:
        _keep_logs_out_of_the_output()
        # As Airflow's own connection commands do: connections are looked up in its database too.
        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
        try:
            function(args)
            sys.stdout.flush()
        except CdcError as error:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(1) from error
        except BrokenPipeError:
            # The reader of our output has ended (head, less). Python would complain again when it closes it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return run


def wrong_usage(message: str) -> SystemExit:
    """Say on stderr what is wrong with the arguments and return what ends the command as argparse does."""
    sys.stderr.write(f"error: {message}\n")
    return SystemExit(2)


def _keep_logs_out_of_the_output() -> None:
    """Send what Airflow would log to stdout to stderr: stdout is for the command's own lines."""
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    redirect_stdout_log_handlers_to_stderr()
    # What the driver fails at comes as one error of ours; it would log a traceback for each try before.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)


def read_connector(path: str) -> Connector:
    """Read a declaration, ours or Debezium's; what of Debezium's has no counterpart is told on stderr.

    Raises:
        ConfigurationError: The file is missing or wrong.
    """
    if not path.endswith(".properties"):
        return load_connector(path)
    from airflow_cdc_provider.connector.debezium import load_debezium_properties

    imported = load_debezium_properties(path)
    for note in imported.notes:
        sys.stderr.write(f"note: {note}\n")
    return imported.connector
