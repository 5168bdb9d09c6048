"""A folder behind SSH, through the system's ``sftp`` program, with its configured keys and hosts.

Each call runs the program once, in batch mode: it never prompts. Runs share one connection, which closes
after a minute without use (``ControlPersist``). A file is written under a temporary name, synced, read back,
and renamed over the old one.
"""

from __future__ import annotations

import hashlib
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, TransientError
from airflow_cdc_provider.regular_files import LARGEST_SEGMENT_BYTES
from airflow_cdc_provider.transfer.stores import (
    FolderStore,
    Item,
    is_name,
    is_partial,
    partial_name,
    require_equal,
)

_LINE: Final = re.compile(r"-\S+\s+\S+\s+\S+\s+\S+\s+([0-9]{1,18})\s+(\S+\s+\S+)\s+(\S+)\s+(\S+)", re.ASCII)
_FOLDER: Final = re.compile(r"/[\w.,:@%+=~/-]*")
_NO_CONNECTION: Final = 255
_DAY_SECONDS: Final = 86_400
_OWN_FILES_BYTES: Final = 1 << 24
"""What ``ssh``, which it starts, may write besides: its known hosts."""


class OpenSshStore:
    """A folder on another machine.

    Args:
        destination: ``user@host``, as ``sftp`` takes it.
        folder: The absolute folder; it and its parent are created if they are missing.
        options: Further options of ``sftp``, for example ``["-P", "2222", "-i", "/etc/cdc/key"]``.

    Raises:
        ConfigurationError: The folder's name has characters that are special in commands of ``sftp``, such as
            a space.
    """

    def __init__(self, destination: str, folder: str, options: Sequence[str] = ()) -> None:
        if _FOLDER.fullmatch(folder) is None:
            raise ConfigurationError(
                "invalid folder for sftp",
                expected="an absolute path of letters, digits and _ . , : @ % + = ~ -",
                found=repr(folder),
            )
        self.destination = destination
        self.folder = PurePosixPath(folder)
        self._sockets = tempfile.TemporaryDirectory(prefix="cdc-ssh-")
        self.options = (
            *options,  # the first value of an option takes precedence
            "-oControlMaster=auto",
            f"-oControlPath={self._sockets.name}/%C",
            "-oControlPersist=60",
            "-oConnectTimeout=30",
            "-oServerAliveInterval=15",
        )

    def exclusive(self) -> AbstractContextManager[None]:
        """Do nothing: there is one shipper per node."""
        return nullcontext()

    def items(self) -> list[Item]:
        """List complete files; their modification times are approximate."""
        return [item for item in self._all() if not item.name.startswith(".")]

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Download a file, and yield the requested bytes.

        It is downloaded whole, so a larger one than requested is refused: the server shall not fill a node's
        disk.
        """
        size = next((item.size_bytes for item in self._all() if item.name == name), None)
        if size is None:
            raise FileNotFoundError(name)
        most_bytes = LARGEST_SEGMENT_BYTES if end is None else end
        if size > most_bytes:
            raise CorruptInput(
                f"{self.destination}:{self.folder / name} is too large",
                expected=f"at most {most_bytes} bytes",
                found=str(size),
            )
        with tempfile.TemporaryDirectory() as here:
            self._run(f"get {self.folder / name} {here}/file", most_bytes=size)
            yield from FolderStore(Path(here)).read("file", begin, end)

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file."""
        temporary = partial_name(name)
        with tempfile.TemporaryDirectory() as here:
            sent = hashlib.sha256()
            size = 0
            with (Path(here) / "file").open("wb") as file:
                for piece in pieces:
                    sent.update(piece)
                    size += file.write(piece)
            self._run(
                *self._make_folder(),
                f"put -f {here}/file {self.folder / temporary}",
                f"get {self.folder / temporary} {here}/back",
                most_bytes=size,
            )
            require_equal(
                f"{self.destination}:{self.folder / name}",
                sent.digest(),
                FolderStore(Path(here)).read("back"),
            )
        self._run(f"rename {self.folder / temporary} {self.folder / name}")

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._run(f"-rm {self.folder / name}")

    def sweep(self) -> None:
        """Remove temporary files of killed writers."""
        leftovers = [f"-rm {self.folder / item.name}" for item in self._all() if is_partial(item.name)]
        if leftovers:
            self._run(*leftovers)

    def _all(self) -> list[Item]:
        lines = self._run(*self._make_folder(), f"ls -lan {self.folder}").splitlines()
        found = [match for line in lines if (match := _LINE.fullmatch(line.strip()))]
        items = [
            Item(PurePosixPath(match[4]).name, int(match[1]), _modified(match[2], match[3]))
            for match in found
        ]
        return [item for item in items if is_name(item.name)]

    def _make_folder(self) -> tuple[str, ...]:
        return f"-mkdir {self.folder.parent}", f"-mkdir {self.folder}"

    def _run(self, *commands: str, most_bytes: int = 0) -> str:
        """Run commands; those that start with ``-`` may fail.

        Args:
            commands: The commands.
            most_bytes: Largest file that they may write here, whatever the server sends.

        Raises:
            TransientError: The host can't be reached, or a command failed.
            ConfigurationError: The program is missing.
        """
        command = ["sftp", "-q", "-b", "-", "-oBatchMode=yes", *self.options, self.destination]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except FileNotFoundError as error:
            raise ConfigurationError(
                "program sftp is missing",
                expected="OpenSSH's client",
                remedy="apt-get install openssh-client",
            ) from error
        with process:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)  # -1: none
            limit = min(most_bytes + _OWN_FILES_BYTES, hard & sys.maxsize)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, hard))
            output, errors = process.communicate("\n".join(commands) + "\n")
        if process.returncode:
            what = "can't be reached" if process.returncode == _NO_CONNECTION else "refused a command"
            found = " ".join(errors.split())[-300:]
            raise TransientError(f"{self.destination} {what}", found=found or str(process.returncode))
        return output


def _modified(day: str, clock: str) -> float:
    """Return the epoch seconds of what ``ls -n`` prints, in this machine's time.

    That is ``Nov 27`` and a year, or a clock for the last half year. Another text means now.
    """
    now = time.time()
    try:
        if ":" not in clock:
            return time.mktime(time.strptime(f"{clock} {day}", "%Y %b %d"))
        year = time.localtime(now).tm_year
        modified = time.mktime(time.strptime(f"{year} {day} {clock}", "%Y %b %d %H:%M"))
        if modified > now + _DAY_SECONDS:
            modified = time.mktime(time.strptime(f"{year - 1} {day} {clock}", "%Y %b %d %H:%M"))
    except (ValueError, OverflowError):
        return now
    return modified
