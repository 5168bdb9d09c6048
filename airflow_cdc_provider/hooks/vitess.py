"""Hook of VTGates; accepts our connection type ``cdc_vitess``."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.hooks.source import CdcHook
from airflow_cdc_provider.sources.vitess.pending import client_of

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient

_CALL_SECONDS: Final = 5.0


class VitessCdcHook(CdcHook):
    """A Vitess cluster, through the gRPC port of one or several VTGates.

    Args:
        vitess_conn_id: The connection: host (several with commas, each with its port if it needs one), port
            (15991), login and password (static authentication of gRPC); as extra ``tls``, ``tls_ca_file``,
            ``tls_cert_file``, ``tls_key_file``, ``tls_server_name``, ``headers``, ``keepalive_seconds``,
            ``max_message_bytes``, ``load_balancing``, ``caller_id``, and ``vtctld_host``, ``vtctld_port``,
            ``vtctld_login`` and ``vtctld_password``.

    Example::

        with VitessCdcHook("vitess_shop") as client:
            client.execute("SHOW VITESS_SHARDS").texts()
    """

    conn_name_attr = "vitess_conn_id"
    default_conn_name = "cdc_vitess_default"
    conn_type = "cdc_vitess"
    hook_name = "Vitess (CDC)"
    accepted_types = ("cdc_vitess",)
    default_port = 15991

    def __init__(self, vitess_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.vitess_conn_id = vitess_conn_id

    @property
    def source_conn_id(self) -> str:
        """Id of the connection."""
        return self.vitess_conn_id

    def get_conn(self) -> VtgateClient:
        """Return a client, the same one until :meth:`close`."""
        return self._client

    def close(self) -> None:
        """Close the client and its threads."""
        if "_client" in self.__dict__:
            self._client.close()
            del self.__dict__["_client"]

    def __enter__(self) -> VtgateClient:
        return self.get_conn()

    def __exit__(self, *_: object) -> None:
        self.close()

    def normalize(self, values: dict[str, Any]) -> dict[str, Any]:
        """Remove empty fields of the form."""
        extra = {name: value for name, value in values["extra"].items() if value not in (None, "")}
        return {**values, "extra": extra}

    def describe_server(self) -> str:
        """Return the release and the keyspaces."""
        try:
            client = self.get_conn()
            comment = client.execute("SELECT @@version_comment", timeout_seconds=_CALL_SECONDS).texts()[0][0]
            rows = client.execute("SHOW VITESS_KEYSPACES", timeout_seconds=_CALL_SECONDS).texts()
        finally:
            self.close()
        version = re.search(r"Version: (\S+)", comment)
        keyspaces = ", ".join(sorted(name for name, *_ in rows)) or "none"
        return f"Vitess{' ' + version[1] if version else ''}, keyspaces {keyspaces}"

    @cached_property
    def _client(self) -> VtgateClient:
        return client_of(self.connection_values())
