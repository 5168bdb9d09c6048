"""A Spark that runs already: the tests' own session runs what Airflow's operators submit.

Most of a small job's CPU time is the start of its JVM and of Python. For Airflow all else is the same: the
operator writes the spec, starts ``spark3-submit``, which it finds on PATH, and reads the result. Runs that
submit to a Spark of their own prove ``spark-submit`` itself.
"""

from __future__ import annotations

import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_cdc_provider.jobs import application
from airflow_cdc_provider.jobs.context import run as run_module
from airflow_cdc_provider.jobs.spec import JobSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRAM = """#!{python} -SE
import socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.connect({address!r})
    client.sendall(sys.argv[-1].encode() + b"\\n")
    code, _, output = client.makefile().read().partition("\\n")
print(output)
sys.exit(int(code))
"""


class WarmSpark:
    """Serves a program that takes the place of ``spark-submit``.

    Args:
        spark: A running session.
        settings: Settings of Spark for jobs, in the place of the session's own catalogs.
        folder: Where the program ``spark3-submit`` is written.
    """

    def __init__(self, spark: SparkSession, settings: Mapping[str, str], folder: Path) -> None:
        self._spark = spark
        self._settings = settings
        self._listener = socket.socket(socket.AF_UNIX)
        address = str(folder / "socket")
        self._listener.bind(address)
        self._listener.listen()
        program = folder / "spark3-submit"
        program.write_text(_PROGRAM.format(python=sys.executable, address=address))
        program.chmod(0o755)
        threading.Thread(target=self._serve, name="warm spark", daemon=True).start()

    def close(self) -> None:
        """Serve no more programs."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, client.makefile("rw") as stream:
                stream.write(self._run(Path(stream.readline().rstrip("\n"))))

    def _run(self, spec: Path) -> str:
        """Run a job and return the program's exit code and, on lines of their own, its output."""
        session = self._session()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(run_module, "build_session", lambda *_: session)
            try:
                outcome = application.run(JobSpec.from_json(spec.read_text()))
            except Exception:  # noqa: BLE001  # the program fails as the application would
                return f"1\n{traceback.format_exc()}"
        return "0\n" if outcome.ok else f"1\n{outcome.error}"

    def _session(self) -> SparkSession:
        session = self._spark.newSession()
        for name in self._spark.conf.getAll:
            if name.startswith("spark.sql.catalog.lake"):
                session.conf.unset(name)
        for name, value in self._settings.items():
            session.conf.set(name, value)
        session.stop = lambda: None  # it would stop the tests' session, too
        return session
