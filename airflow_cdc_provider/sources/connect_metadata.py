"""How the fields of decoded events name their Connect schemas: metadata that envelopes read."""

from __future__ import annotations

from typing import Final

CONNECT_NAME: Final = b"connect.name"
"""The name of the schema; its version follows after a colon, if it has one."""
CONNECT_DOC: Final = b"connect.doc"
"""The schema's description."""
CONNECT_PARAMETERS: Final = b"connect.parameters"
"""Parameters of the schema: ``name=value``, a line each, or a JSON object."""
