"""Packages of another Debian suite, unpacked into a folder: nothing is installed, apt's own state stays.

apt itself downloads them and checks their signatures, by the mirror that the machine's own sources name.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from server_kit.programs import find_program, run_program

_KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"


def unpack_packages(
    folder: Path, suite: str, packages: Sequence[str], *, with_dependencies: bool = False
) -> None:
    """Download packages and unpack them.

    Args:
        folder: Root of what is unpacked. It has ``apt`` inside while this runs.
        suite: For example ``sid`` or ``bullseye-security``.
        packages: Their names.
        with_dependencies: Whether to take all that they depend on as well, libc included, so that they run
            by themselves whatever the machine has.

    Raises:
        ConfigurationError: apt is missing, knows no mirror of Debian, or failed.
    """
    apt = find_program("apt-get", "apt")
    mirror = _mirror(apt, security=suite.endswith("-security"))
    root = folder / "apt"
    for part in ("lists/partial", "archives/partial"):
        (root / part).mkdir(parents=True)
    (root / "status").touch()
    source = root / "sources.list"
    source.write_text(f"deb [signed-by={_KEYRING}] {mirror} {suite} main\n")
    options = [
        f"-oDir::Etc::SourceList={source}",
        "-oDir::Etc::SourceParts=/dev/null",
        f"-oDir::State::Lists={root / 'lists'}",
        f"-oDir::State::status={root / 'status'}",
        f"-oDir::Cache={root}",
        "-oAPT::Sandbox::User=",  # the folder belongs to the user who runs this, _apt could not write it
        "-oDebug::NoLocking=true",  # the machine's packages aren't touched, so any user may
    ]
    run_program([apt, "-q", *options, "update"], f"reading Debian's suite {suite}", cwd=root)
    if with_dependencies:
        take, place = ["--no-install-recommends", "--download-only", "-y", "install"], root / "archives"
    else:
        take, place = ["download"], root
    run_program([apt, "-q", *options, *take, *packages], f"downloading {packages[0]} with apt", cwd=root)
    unpack = find_program("dpkg-deb", "dpkg")
    for package in sorted(place.glob("*.deb")):
        run_program([unpack, "-x", str(package), str(folder)], f"unpacking {package.name}")
    shutil.rmtree(root)


def _mirror(apt: str, *, security: bool) -> str:
    """Return the address from which the machine itself takes Debian's packages, or their security fixes."""
    targets = subprocess.run(
        [apt, "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(ORIGIN)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    for line in targets.splitlines():
        match = re.fullmatch(r"(\S+) \w+(-security)? Debian", line.strip())
        if match and bool(match.group(2)) == security:
            return match.group(1)
    kind = "security suite" if security else "suite"
    raise ConfigurationError(
        f"apt knows no Debian {kind}",
        expected=f"a line for <release>{'-security' if security else ''} in apt's sources",
        remedy="add it and run: apt-get update",
    )
