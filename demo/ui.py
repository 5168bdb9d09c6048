"""``make ui``: Airflow's web pages on what the demo left, with both databases running, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from airflow_cdc_provider.exceptions import CdcError
from demo.layout import Layout
from demo.private_airflow import PrivateAirflow
from demo.servers import servers
from server_kit.ports import free_port, is_free

_USUAL_PORT = 8080


def main() -> int:
    """Start everything and wait for Ctrl-C."""
    layout = Layout()
    if not layout.airflow.exists():
        print("There is no demo to look at yet: run make demo first", file=sys.stderr)
        return 1
    port = _USUAL_PORT if is_free(_USUAL_PORT) else free_port()
    try:
        with servers(layout):
            return _serve(PrivateAirflow(layout), port)
    except CdcError as error:
        print(error, file=sys.stderr)
        return 1


def _serve(airflow: PrivateAirflow, port: int) -> int:
    environment = {
        **airflow.environment,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
    }
    # Airflow's parts are children of a child: a group of its own lets one signal reach all of them.
    process = subprocess.Popen(["airflow", "standalone"], env=environment, start_new_session=True)
    print(f"\nAirflow opens at http://127.0.0.1:{port}, no login needed; Ctrl-C ends it\n", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
