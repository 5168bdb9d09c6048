"""What an error of VTGate means to its caller.

gRPC's codes tell little here: a table that isn't there, a race with a DDL statement and a purged binlog are
all UNKNOWN. So the text is asked where the code doesn't tell. Once an error has its class, nobody looks at
texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError


class SchemaBehind(TransientError):
    """A tablet's view of a table's columns doesn't fit the changes that it reads; passes as a rule."""


class ParticipantsApart(TransientError):
    """A reshard concerns shards of which a stream has some and not all, so VTGate can't follow it there."""


_SHOWN: Final = 400

_LOST: Final = re.compile(r"purged|GTIDSet|not found in the \S+ keyspace")
_BEHIND: Final = re.compile(r"cannot determine table columns|failed to reload schema after DDL")
_APART: Final = "not all journaling participants are in the stream"
_TOO_LARGE: Final = re.compile(r"[Rr]eceived message larger than max")
_FOR_A_PERSON: Final = {
    "could not decode position": "the offset is no position of this server: set it, or take a new snapshot",
    "not present in the database": "check the connector's tables",
    "failed to build table replication plan": "check the connector's tables",
    "node doesn't exist": "check the connector's keyspace",
    "stream needs a position or a table to copy": "no table is hit: check the connector's tables",
}
_CODES_FOR_A_PERSON: Final = {
    "UNAUTHENTICATED": "give the connection the login and password that VTGate asks for",
    "PERMISSION_DENIED": "check the connection's login and password, and what VTGate lets that user do",
    "INVALID_ARGUMENT": "",
    "NOT_FOUND": "",
    "ALREADY_EXISTS": "",
    "OUT_OF_RANGE": "",
    "UNIMPLEMENTED": "the server is no VTGate (gRPC's port, not MySQL's or the web page's), or is too old",
}


def failure(doing: str, code: str, details: str, secrets: Sequence[str] = ()) -> CdcError:
    """Return one of our errors for one of VTGate's.

    Args:
        doing: What was tried, as the beginning of the message.
        code: Name of the status code of gRPC, or of Vitess's own, which are the same.
        details: The server's text.
        secrets: What the message must not show.
    """
    text = " ".join(details.split())
    for secret in secrets:
        text = text.replace(secret, "***")
    found = f"{code}: {text[:_SHOWN].rstrip('.')}"
    if _TOO_LARGE.search(text):
        return ConfigurationError(
            f"{doing}: a message is larger than allowed",
            found=found,
            remedy="raise max_message_bytes in the connection's extra, or in the connector",
        )
    for part, remedy in _FOR_A_PERSON.items():
        if part in text:
            return ConfigurationError(doing, found=found, remedy=remedy)
    if _BEHIND.search(text):
        return SchemaBehind(
            doing, found=found, remedy="if it stays, start vttablets with --track-schema-versions"
        )
    if _APART in text:
        return ParticipantsApart(doing, found=found, remedy="read all shards that were resharded")
    if _LOST.search(text):
        return PositionLost(
            doing, found=found, remedy="take a new snapshot, or start from a later place; keep binlogs longer"
        )
    if code in _CODES_FOR_A_PERSON:
        return ConfigurationError(doing, found=found, remedy=_CODES_FOR_A_PERSON[code])
    return TransientError(doing, found=found, remedy="it is tried again; see that VTGate and its tablets run")
