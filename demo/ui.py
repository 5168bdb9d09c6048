"""``make ui``: Airflow's web pages on what the demo left, with both databases running, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from airflow_cdc_provider.exceptions import CdcError
from demo.layout import Layout
from demo.private_airflow import PrivateAirflow
from demo.servers import require_ended, servers
from server_kit.ports import free_port, is_free

_USUAL_PORT = 8080
_STOP_SECONDS = 20


def main() -> int:
    """Start everything and wait for Ctrl-C."""
    layout = Layout()
    if not layout.airflow.exists():
        print("There is no demo yet: run make demo first", file=sys.stderr)
        return 1
    port = _USUAL_PORT if is_free(_USUAL_PORT) else free_port()
    try:
        require_ended(layout)
        with servers(layout):
            return _serve(PrivateAirflow(layout), port)
    except CdcError as error:
        print(error, file=sys.stderr)
        return 1


def _serve(airflow: PrivateAirflow, port: int) -> int:
    address = f"http://127.0.0.1:{port}"
    environment = {
        **airflow.environment,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
    }
    log = airflow.layout.logs / "airflow.log"
    with log.open("wb") as output:
        # Airflow's parts are children of a child: a group of its own lets one signal reach all of them.
        process = subprocess.Popen(
            ["airflow", "standalone"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        print(f"Airflow is starting, which takes about half a minute; its log is {log}", flush=True)
        while process.poll() is None and is_free(port):
            time.sleep(0.5)
        if process.poll() is None:
            print(f"\nOpen {address} (no login needed); Ctrl-C ends it", flush=True)
        code = process.wait()
        print(f"Airflow ended with {code}; see {log}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End Airflow's processes; the parent may end before them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
