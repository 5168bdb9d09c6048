"""Credentials from a class of one's own, for logins that live in no Airflow connection.

The class is named by ``source.authentication_class``. It is made and asked each time that a process connects,
so it may give a token that lasts for a while only. What a connection string says itself wins, and so do
options of the connection's extra; login and password of the connection are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.plugins import load_plugin

_OPTION: Final = "source.authentication_class"
_ALLOWED: Final = ("username", "password", "authSource", "authMechanism", "authMechanismProperties")


class AuthenticationProvider(Protocol):
    """A class that knows how to log in; it is made without arguments."""

    def credentials(self, hosts: str) -> Mapping[str, Any]:
        """Return how to log in.

        Args:
            hosts: The servers as the connection names them, without any secret.

        Returns:
            Of PyMongo's options ``username``, ``password``, ``authSource``, ``authMechanism`` and
            ``authMechanismProperties`` those that it sets; none to leave all as it is.
        """
        ...


def ask_provider(place: str, hosts: str) -> dict[str, Any]:
    """Ask a class for credentials.

    Args:
        place: ``package.module:Class``.
        hosts: The servers.

    Raises:
        ConfigurationError: It can't be loaded, fails, or gives other options. The message shows no value.
    """
    provider = load_plugin(_OPTION, place)
    try:
        given = provider().credentials(hosts)
    except CdcError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a class of a user's raises
        # Its text may hold a secret.
        raise ConfigurationError(f"{_OPTION} {place} failed", found=type(error).__name__) from None
    if not isinstance(given, Mapping) or not set(given) <= set(_ALLOWED):
        found = sorted(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise ConfigurationError(
            f"{_OPTION} {place} gives no credentials",
            expected=f"a mapping with some of {', '.join(_ALLOWED)}",
            found=str(found),
        )
    return dict(given)
