"""Maps errors of VTGate to exception classes.

gRPC's status codes aren't sufficient: a missing table, a race with a DDL statement and a purged binlog are
all UNKNOWN. Such errors are classified by their text. All other code only uses the exception class.
"""

from __future__ import annotations

import re
from typing import Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.masking import masked


class StaleTabletSchema(TransientError):
    """A tablet's schema of a table doesn't match the changes that it reads; usually transient.

    Attributes:
        table: Name of the table, without keyspace; empty if it is unknown.
    """

    table: str = ""


class UnreadableTable(StaleTabletSchema):
    """A tablet can't map ENUM or SET of a table; after some attempts, because its columns were altered."""


class PartialReshard(TransientError):
    """A stream has only some of the shards of a reshard, so VTGate can't follow the reshard in it."""


_START_TEXT: Final = 200
_END_TEXT: Final = 600
"""VTGate's texts begin with what failed and end with the cause; between are positions, which can be long."""

_LOST: Final = re.compile(
    r"purged (?:required )?binary logs|binlog files have been purged|GTIDSet Mismatch"
    r"|not found in the \S+ keyspace"
)
_BEHIND: Final = re.compile(r"cannot determine table columns|failed to reload schema after DDL")
_UNREADABLE: Final = re.compile(
    r"failed to build ENUM and SET"
    r"|found for (?:ENUM |SET )?column .{1,200}? in table .{1,200}?(?: -- with|, bytes)"
)
_TABLE: Final = re.compile(
    r"(?:replication plan for table|table columns for|column .{1,200}? in table) (.{1,200}?)"
    r"(?:: | -- with available|, bytes|\.?$)"
)
_PARTIAL_RESHARD: Final = "not all journaling participants are in the stream"
TRACK_VERSIONS: Final = "if the error persists, start vttablets with --track-schema-versions"
_TOO_LARGE: Final = re.compile(r"(?:[Rr]eceived|[Ss]end(?:ing)?) message larger than max")
_CERTIFICATE: Final = (
    "renew VTGate's certificate, or correct the host, or tls_ca_file in the extra of the Airflow connection"
)
_CONFIGURATION_TEXTS: Final = {
    "could not decode position": "the offset isn't a position of this server: set one, or take a snapshot",
    "not present in the database": "check the connector's tables",
    "failed to build table replication plan": "check the connector's tables",
    "node doesn't exist": "check the connector's keyspace",
    "CERTIFICATE_VERIFY_FAILED": _CERTIFICATE,
    "Hostname Verification Check failed": _CERTIFICATE,
    "stream needs a position or a table to copy": "no table matches: check the connector's tables",
}
_CONFIGURATION_CODES: Final = {
    "UNAUTHENTICATED": "set the login and password of VTGate in the connection",
    "PERMISSION_DENIED": "check the connection's login and password, and the user's permissions in VTGate",
    "INVALID_ARGUMENT": "",
    "NOT_FOUND": "",
    "ALREADY_EXISTS": "",
    "OUT_OF_RANGE": "",
    "UNIMPLEMENTED": "the server isn't VTGate (use its gRPC port, not MySQL's or the web one), or too old",
}


def failure(doing: str, code: str, details: str) -> CdcError:
    """Return the exception for an error of VTGate.

    Args:
        doing: The failed operation, as the start of the message.
        code: Name of the status code of gRPC or Vitess, which are the same.
        details: The server's text.

    Returns:
        An exception whose class says whether a retry may help.
    """
    text = " ".join(details.split())
    shown = masked(text)
    if len(shown) > _START_TEXT + _END_TEXT:
        shown = f"{shown[:_START_TEXT]} ... {shown[-_END_TEXT:]}"
    found = f"{code}: {shown.rstrip('.')}"
    if _TOO_LARGE.search(text):
        return ConfigurationError(
            f"{doing}: a message is larger than allowed; the error doesn't name its table",
            expected="rows, with their state before a change, within max_message_bytes (17 MiB by default) "
            "and within --grpc-max-message-size (16 MiB) of VTGate and its tablets",
            found=found,
            remedy="raise the limit that the error has: max_message_bytes in the connection's extra or in "
            "the connector, or the flag of the servers; or exclude the table with the large row",
        )
    is_behind = _BEHIND.search(text)
    if is_behind or _UNREADABLE.search(text):
        # VTGate's text has all columns of the table, so what is shown of it may lack the cause.
        behind = "a tablet doesn't know the columns that the table had at these changes"
        altered = "an ENUM or SET column, or the table, was altered or dropped after these changes"
        stale = (
            StaleTabletSchema(f"{doing}: {behind}", found=found, remedy=TRACK_VERSIONS)
            if is_behind
            else UnreadableTable(f"{doing}: {altered}", found=found)
        )
        table = _TABLE.search(text)
        stale.table = table[1] if table else ""
        return stale
    for part, remedy in _CONFIGURATION_TEXTS.items():
        if part in text:
            return ConfigurationError(doing, found=found, remedy=remedy)
    if _PARTIAL_RESHARD in text:
        return PartialReshard(doing, found=found, remedy="read all shards of the reshard")
    if _LOST.search(text):
        return PositionLost(
            doing,
            found=found,
            remedy="take a new snapshot, or start from a later position; retain binlogs longer",
        )
    if code in _CONFIGURATION_CODES:
        return ConfigurationError(doing, found=found, remedy=_CONFIGURATION_CODES[code])
    return TransientError(
        doing,
        found=found,
        remedy="the operation is retried; check host, port, TLS and that VTGate and its tablets run",
    )
