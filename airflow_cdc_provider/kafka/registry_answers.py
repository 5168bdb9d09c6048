"""Bounds of the answers of a schema registry, which confluent-kafka's client has no settings for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

MOST_BYTES: Final = 4 << 20
"""Largest answer, and the most of a schema with all schemas that it refers to."""
_MOST_OF_TOKEN: Final = 64 << 10
"""Largest answer of an issuer of tokens."""
_ANSWER_SECONDS: Final = 60.0
"""Maximum time for the body of an answer, however slowly it arrives."""


def bound_answers(client: Any) -> None:
    """Let a client give up an answer that is too large, compressed, or takes too long.

    The client has no setting for it, so this uses the HTTP sessions in it: to the registry, and to the issuer
    of its tokens.
    """
    rest = client._rest_client
    _bound(rest.session, MOST_BYTES)
    if issuer := getattr(rest.bearer_field_provider, "client", None):
        _bound(issuer, _MOST_OF_TOKEN)


def _bound(session: Any, most_bytes: int) -> None:
    from confluent_kafka.schema_registry.common._httpx_compat import httpx

    class Bounded(httpx.SyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __iter__(self) -> Iterator[bytes]:
            end, left = time.monotonic() + _ANSWER_SECONDS, most_bytes
            for piece in self._stream:
                left -= len(piece)
                if left < 0 or time.monotonic() > end:
                    raise ValueError("an answer that is too large or too slow")
                yield piece

        def close(self) -> None:
            self._stream.close()

    def bound(response: Any) -> None:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ValueError("a compressed answer, which wasn't requested")
        response.stream = Bounded(response.stream)

    session.headers["Accept-Encoding"] = "identity"
    session.event_hooks = {"response": [bound]}
