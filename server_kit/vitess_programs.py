"""Programs of Vitess and its MySQL: built or unpacked once, and how they are run.

Vitess is built by Go from the module proxy; its hash is here, and those of its dependencies in its go.sum.
Debian stable has no MySQL that fits, so MySQL is unpacked from ``sid`` with the libraries that it needs, libc
included; nothing is installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from server_kit.cache import cached, require_hash
from server_kit.debian import unpack_packages
from server_kit.programs import find_program, run_program

DEFAULT_VERSION: Final = "0.24.4"
"""Version of the Go module: Vitess 24.0.4. Earlier ones may block DDL (vitessio/vitess#20314)."""
_MODULE: Final = "vitess.io/vitess"
_SUMS: Final = {"0.24.4": "h1:fjIFc28fGYF6Bxu4heHsKvx+huPbA4NmIeLJL4clbc8="}
"""Go's hashes of the module, by version."""
_GO: Final = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
"""Go runs as it is installed: it would download the toolchain that a go.mod names, without a hash of ours."""
_USER, _GROUP = "nobody", "nogroup"
# What mysqld's and vtcombo's programs are called; perl's and others that the packages bring aren't.
_PROGRAMS: Final = ("sbin/mysqld", "bin/mysql", "bin/mysqladmin", "bin/mysqlbinlog", "bin/mysqldump")


def vitess_program(version: str, name: str) -> Path:
    """Return a program of Vitess, built if need be.

    Args:
        version: Version of the Go module.
        name: For example ``vtcombo``.

    Raises:
        ConfigurationError: Go is missing or too old, or a download or the build failed.
    """
    what = f"{name} of Vitess {version} (some minutes, 3 GB of Go's caches)"
    return cached("vitess", f"{version}-{name}", lambda folder: _build(version, name, folder), what) / name


def _build(version: str, name: str, folder: Path) -> None:
    go = find_program("go", "golang (of the version in Vitess's go.mod or later, from go.dev)")
    # "go install module@version" asks for the list of versions, which some proxies refuse.
    printed = run_program(
        [go, "mod", "download", "-json", f"{_MODULE}@v{version}"],
        "downloading Vitess's module",
        cwd=folder,
        environment=_GO,
    )
    module = json.loads(printed)
    require_hash(f"module {_MODULE} {version}", module["Sum"], _SUMS.get(version))
    run_program(
        [go, "build", "-mod=readonly", "-o", str(folder / name), f"./go/cmd/{name}"],
        f"building {name}",
        cwd=Path(module["Dir"]),  # its go.sum has the hashes of all that it depends on
        environment=_GO,
        timeout_seconds=3600,
    )


def mysql_folder() -> Path:
    """Return where MySQL is unpacked, downloaded if need be.

    Raises:
        ConfigurationError: apt can't give it.
    """
    return cached("mysql", "debian-sid", _unpack_mysql, "MySQL of Debian sid (66 MB)")


def mysql_version(usr: Path) -> str:
    """Return MySQL's version, from its program."""
    printed = run_program([str(usr / "sbin" / "mysqld"), "--version"], "asking mysqld for its version")
    match = re.search(r"Ver (\d+\.\d+\.\d+)", printed)
    if match is None:
        raise ConfigurationError("mysqld printed no version", found=printed[:200])
    return match.group(1)


def _unpack_mysql(folder: Path) -> None:
    packages = ["mysql-server-core", "mysql-client-core"]
    unpack_packages(folder, "sid", packages, with_dependencies=True)
    wrap_programs(folder, _PROGRAMS)
    usr = folder / "usr"
    for path in (usr / "bin" / "mysqld_safe", *usr.glob("share/doc"), *usr.glob("share/perl*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def wrap_programs(folder: Path, names: Sequence[str]) -> None:
    """Have unpacked programs run with the libraries that came with them.

    The kernel ends mysqld, in order, with the one who started it.

    Args:
        folder: Where packages were unpacked.
        names: The programs, below its ``usr``.
    """
    usr = folder / "usr"
    loader = next(folder.glob("usr/lib*/ld-linux*.so.*")).relative_to(usr)
    libraries = next(folder.glob("usr/lib/*/libc.so.6")).parent.relative_to(usr)
    for name in names:
        leash = "setpriv --pdeathsig TERM -- " if name.endswith("mysqld") else ""
        program = usr / name
        up = "/".join(".." for _ in program.parent.relative_to(usr).parts)
        program.rename(program.with_suffix(".real"))
        program.write_text(
            f'#!/bin/sh\nusr=$(dirname "$0")/{up}\n'
            f'exec {leash}"$usr/{loader}" --library-path "$usr/{libraries}" "$usr/{name}.real" "$@"\n'
        )
        program.chmod(0o755)


def as_user() -> list[str]:
    """Return a command prefix that runs a program as a user other than root, which Vitess and MySQL refuse.

    The cache may lie in root's home, which only root may enter, or who has this one of root's rights.
    """
    if os.geteuid() != 0:
        return []
    right = "+dac_override"
    return [
        *(find_program("setpriv", "util-linux"), "--reuid", _USER, "--regid", _GROUP, "--clear-groups"),
        *("--inh-caps", right, "--ambient-caps", right, "--pdeathsig", "KILL", "--"),
    ]


def give_away(folder: Path) -> None:
    """Make a folder and all in it the property of who :func:`as_user` runs programs as."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, _USER, _GROUP)
