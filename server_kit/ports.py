"""Free TCP ports, below the range from which the kernel takes ports for outgoing connections."""

from __future__ import annotations

import random
import socket

from airflow_cdc_provider.exceptions import ConfigurationError

_CANDIDATES = range(20_000, 32_000)
_random = random.SystemRandom()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a server could listen on a port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nothing listens on, drawn at random so that parallel sessions seldom meet.

    Raises:
        ConfigurationError: None was found.
    """
    for port in _random.sample(_CANDIDATES, 200):
        if is_free(port, host):
            return port
    raise ConfigurationError(
        f"no free port was found on {host}",
        expected=f"one between {_CANDIDATES.start} and {_CANDIDATES.stop}",
        remedy="end servers that are no longer needed",
    )


def require_free(port: int, host: str, what: str) -> None:
    """Refuse a port that is taken.

    Raises:
        ConfigurationError: Something listens there already.
    """
    if not is_free(port, host):
        raise ConfigurationError(
            f"port {port} on {host} is taken, {what} can't listen there",
            expected="a free port",
            remedy=f"see who has it with: ss -ltnp 'sport = :{port}'; or let the server pick a free one",
        )
