"""Metadata keys by which fields of decoded events carry their Connect schemas; envelopes read them."""

from __future__ import annotations

from typing import Final

CONNECT_NAME: Final = b"connect.name"
"""The schema's name, followed by a colon and its version if it has one."""
CONNECT_DOC: Final = b"connect.doc"
"""The schema's description."""
CONNECT_PARAMETERS: Final = b"connect.parameters"
"""The schema's parameters: one ``name=value`` per line, or a JSON object."""
