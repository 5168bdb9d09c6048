"""One real OpenSSH server, by Debian's package, without installing it.

Where the machine has no ``sshd`` of its own, apt downloads Debian's into a folder of the cache (signatures
checked, from the mirror that the machine's own sources name). It runs as an ordinary user: started by root it
becomes ``nobody``, because a server of root's would need a user and a folder that only an installation makes;
``libnss-wrapper`` lets that user log in, in this process alone.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
from pathlib import Path
from typing import Self

from server_kit.cache import cached
from server_kit.ports import free_port, require_free
from server_kit.programs import find_program, run_program
from server_kit.server import Server

_PACKAGES = ("openssh-server", "libwrap0", "libnss-wrapper")
_CONFIGURATION = """Port {port}
ListenAddress {host}
HostKey {folder}/host_key
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
AuthorizedKeysFile {folder}/client_key.pub
MaxStartups 100
Subsystem sftp internal-sftp
"""


class SshServer(Server):
    """One server, whose only client key is :attr:`client_key`.

    Args:
        folder: Where it keeps everything. Default: a temporary folder that :meth:`close` removes. In it
            ``files`` belongs to the server's user, for clients to write to.
        port: Port for clients.
    """

    def __init__(self, folder: Path | None = None, *, port: int | None = None) -> None:
        super().__init__("sshd", folder, host="127.0.0.1", port=port or free_port(), log="log")
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())

    @property
    def user(self) -> str:
        """The name to log in with."""
        return self._user.pw_name

    @property
    def files(self) -> Path:
        """A folder that clients may write to."""
        return self.folder / "files"

    @property
    def client_key(self) -> Path:
        """The private key to log in with."""
        return self.folder / "private" / "client_key"

    @property
    def known_hosts(self) -> Path:
        """A file of known hosts with the server's key."""
        return self.folder / "private" / "known_hosts"

    @property
    def client_options(self) -> tuple[str, ...]:
        """What ``sftp`` and ``ssh`` need to log in, but for the port. They end with it."""
        known = f"-oUserKnownHostsFile={self.known_hosts}"
        return ("-i", str(self.client_key), known, "-oControlPersist=2", "-F", "/dev/null")

    def give(self, path: Path) -> None:
        """Make a folder with all that is in it the server's user's."""
        if os.geteuid() == 0:
            for each in (path, *path.rglob("*")):
                os.chown(each, self._user.pw_uid, self._user.pw_gid)

    def start(self) -> Self:
        """Start the server and wait until it takes connections.

        Raises:
            ConfigurationError: apt can't give it, a taken port, or a failed start with the end of its log.
        """
        packages = cached("sshd", "debian", _download, "OpenSSH's server with apt (0.6 MB)")
        require_free(self.port, self.host, "sshd")
        if not self.client_key.exists():
            self._prepare()
        program = self.folder / "program"  # user "nobody" can't read root's cache
        shutil.copytree(packages / "usr", program, dirs_exist_ok=True, symlinks=True)
        libraries = next(program.glob("lib/*/libnss_wrapper.so")).parent
        become = [find_program("setpriv", "util-linux"), "--reuid", str(self._user.pw_uid), "--clear-groups"]
        self._process.start(
            [
                *([*become, "--regid", str(self._user.pw_gid), "--"] if os.geteuid() == 0 else []),
                str(program / "sbin" / "sshd"),
                *("-D", "-e", "-f", str(self.folder / "sshd_config")),
            ],
            self.log,
            {
                "LD_LIBRARY_PATH": str(libraries),
                "LD_PRELOAD": str(libraries / "libnss_wrapper.so"),
                "NSS_WRAPPER_PASSWD": str(self.folder / "passwd"),
                "NSS_WRAPPER_GROUP": str(self.folder / "group"),
                "NSS_WRAPPER_SHADOW": str(self.folder / "shadow"),
            },
        )
        self._process.wait_until(self._answers, "a connection", 20)
        return self

    def _prepare(self) -> None:
        self.folder.chmod(0o755)
        for part in (self.files, self.client_key.parent):
            part.mkdir(exist_ok=True)
        keygen = find_program("ssh-keygen", "openssh-client")
        for key in (self.folder / "host_key", self.client_key):
            run_program([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(key)], "making an SSH key")
        shutil.copy(self.client_key.with_suffix(".pub"), self.folder)
        public = (self.folder / "host_key.pub").read_text()
        self.known_hosts.write_text(f"[{self.host}]:{self.port} {public}")
        user = self._user
        ids = f"{user.pw_uid}:{user.pw_gid}"
        (self.folder / "passwd").write_text(f"{user.pw_name}:x:{ids}::{self.files}:/bin/sh\n")
        (self.folder / "group").write_text(f"users:x:{user.pw_gid}:\n")
        (self.folder / "shadow").write_text(f"{user.pw_name}:x:18000:0:99999:7:::\n")
        configuration = _CONFIGURATION.format(host=self.host, port=self.port, folder=self.folder)
        (self.folder / "sshd_config").write_text(configuration)
        for part in (self.files, self.folder / "host_key"):
            self.give(part)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def _close_clients(self) -> None:
        """Clients end by themselves."""


def _download(folder: Path) -> None:
    apt = find_program("apt-get", "apt")
    root = folder / "apt"
    for part in ("lists/partial", "archives/partial"):
        (root / part).mkdir(parents=True)
    options = [
        f"-oDir::State::Lists={root / 'lists'}",
        f"-oDir::Cache={root}",
        "-oAPT::Sandbox::User=",  # the folder belongs to the user who runs this, _apt could not write it
    ]
    run_program([apt, "-q", *options, "update"], "reading Debian's package lists", cwd=root)
    run_program([apt, "-q", *options, "download", *_PACKAGES], "downloading OpenSSH's server", cwd=root)
    for package in root.glob("*.deb"):
        run_program([find_program("dpkg-deb", "dpkg"), "-x", str(package), str(folder)], "unpacking sshd")
    shutil.rmtree(root)
    shutil.rmtree(folder / "usr" / "share")
