"""The ``spark-submit`` process on this machine: its prerequisites, and ending it with its children."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError

APPLICATION: Final = str(Path(__file__).parents[1] / "jobs" / "application.py")
"""The program of all stages."""
_NAMES_AN_ERROR: Final = re.compile(r"(?:Exception in thread.*|Caused by: .*|[\w.$]+(?:Error|Exception)\b.*)")


def check_submit(binary: str, variables: Mapping[str, Any], path: str) -> None:
    """Check that the program and Java are installed.

    Args:
        binary: Name of the submitting program.
        variables: Environment variables that the task sets for it.
        path: Search path, unless these variables have a PATH.

    Raises:
        ConfigurationError: The program or Java is missing.
    """
    path = str(variables.get("PATH") or path)
    if shutil.which(binary, path=path) is None:
        raise ConfigurationError(
            f"there is no {binary} on this worker's PATH",
            expected="PySpark installed where Airflow's workers run",
            remedy="pip install 'pyspark==4.1.3', or set the extra spark-binary of the Spark connection",
        )
    home = str(variables.get("JAVA_HOME") or os.environ.get("JAVA_HOME") or "")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=path)
    if java is None or not os.access(java, os.X_OK):
        raise ConfigurationError(
            "there is no Java on this worker",
            expected="Java 17 or later, which Spark needs",
            found=f"JAVA_HOME={home}, where bin/java isn't executable"
            if home
            else "no java on PATH, no JAVA_HOME",
            remedy="install a JRE (Debian: apt-get install openjdk-17-jre-headless), or correct JAVA_HOME",
        )


def search_path() -> str:
    """Return PATH, with this Python's own folder first, where pip installs ``spark-submit``."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def short_lived_java() -> str:
    """Return ``JDK_JAVA_OPTIONS`` for a program that ends after minutes.

    The optimising compiler would use a quarter of a run's CPU time or more, for little benefit. The
    environment's own options follow, and so take precedence.
    """
    return f"-XX:TieredStopAtLevel=1 {os.environ.get('JDK_JAVA_OPTIONS', '')}".strip()


def process_tree(pid: int) -> list[Any]:
    """List a process and its descendants, so that they can be killed after it has ended."""
    import psutil  # type: ignore[import-untyped]  # comes with Airflow

    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(process: Any) -> None:
    """Kill a process from :func:`process_tree`, unless it has ended, or changed its user."""
    import psutil

    with suppress(psutil.Error):
        process.kill()


def last_word(output: str) -> str:
    """Return the most informative line: the last one that names an error, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if _NAMES_AN_ERROR.match(line)]
    return (named or lines or ["no output"])[-1][:500]
