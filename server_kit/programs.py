"""Programs that the servers need from the machine: found, run to their end, and their failures explained."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_cdc_provider.exceptions import ConfigurationError

JAVA_VERSIONS = range(
    17, 22
)  # Cassandra 5.0 and Spark 4.1 both run on these; 24 dropped the security manager


def find_program(name: str, package: str) -> str:
    """Return the path of a program.

    Raises:
        ConfigurationError: It isn't on the PATH; the message names the Debian package that has it.
    """
    path = shutil.which(name)
    if path is None:
        raise ConfigurationError(
            f"program {name} is missing",
            expected=f"{name} on the PATH",
            remedy=f"apt-get install {package}",
        )
    return path


def find_java() -> str:
    """Return the path of a Java that Cassandra 5.0 and Spark 4.1 run on: ``JAVA_HOME``'s, else the PATH's.

    Raises:
        ConfigurationError: There is none, or it is of another version.
    """
    home = os.environ.get("JAVA_HOME", "")
    java = f"{home}/bin/java" if home else find_program("java", "openjdk-17-jre-headless")
    if not os.access(java, os.X_OK):
        raise ConfigurationError(
            "Java is missing",
            expected=f"a program {java}, as JAVA_HOME says",
            remedy="unset JAVA_HOME, or point it at Java 17",
        )
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', text)
    if match is None or int(match.group(1)) not in JAVA_VERSIONS:
        raise ConfigurationError(
            f"{java} has the wrong version",
            expected=f"Java {JAVA_VERSIONS.start} to {JAVA_VERSIONS.stop - 1}",
            found=match.group(1) if match else text.strip()[:200] or "nothing",
            remedy="apt-get install openjdk-17-jre-headless, and set JAVA_HOME to it",
        )
    return java


def run_program(
    command: Sequence[str],
    purpose: str,
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = 900,
) -> str:
    """Run a program to its end and return what it printed to stdout.

    Args:
        command: Program and arguments.
        purpose: What fails if it fails, for the message.
        cwd: Where to run it.
        environment: Variables to add to this process's.
        timeout_seconds: When to give up and end it.

    Raises:
        ConfigurationError: It failed or took too long; the message has the end of its output.
    """
    try:
        done = subprocess.run(
            list(command),
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(
            f"{purpose} took too long",
            expected=f"{command[0]} to end within {timeout_seconds:.0f} s",
            remedy="look whether the machine reaches its package registries, then try again",
        ) from error
    if done.returncode != 0:
        output = _without_logins((done.stderr + done.stdout).strip())
        end = " | ".join(output.splitlines()[-6:])
        full = "No space left on device" in output
        raise ConfigurationError(
            f"{purpose} failed",
            found=f"{Path(command[0]).name} ended with {done.returncode}: {end}",
            remedy="the disk is full: free some space, or set TMPDIR and XDG_CACHE_HOME to another disk"
            if full
            else "look whether the machine reaches its package registries, then try again",
        )
    return done.stdout


def _without_logins(text: str) -> str:
    """Blank what may hold a user's name and password for a private mirror."""
    return re.sub(r"(\w+://)[^/@\s]*@", r"\1", text)
