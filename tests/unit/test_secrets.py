from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.secrets import is_reference, resolve_secret
from tests.conftest import ROOT

OPTION = "source.encryption.key_password"


def test_a_secret_is_where_its_reference_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_WORD", "a b ")
    file = tmp_path / "word"
    file.touch(0o600)
    file.write_text("c d \r\n")
    assert resolve_secret("${env:THE_WORD}", OPTION) == "a b "
    assert resolve_secret(f"${{file:{file}}}", OPTION) == "c d "


@pytest.mark.parametrize("text", ["", "word", "${", "$env:X", "${env:X}y", "${vault:x}"])
def test_anything_else_is_the_secret_itself(text: str) -> None:
    assert not is_reference(text)
    assert resolve_secret(text, OPTION) == text


def test_a_reference_to_nothing_names_the_option_and_the_place(tmp_path: Path) -> None:
    for reference, place in (
        ("${env:NOT_THERE}", "environment variable NOT_THERE"),
        (f"${{file:{tmp_path}/none}}", f"file {tmp_path}/none"),
    ):
        with pytest.raises(ConfigurationError) as failed:
            resolve_secret(reference, OPTION)
        assert f"the secret of option {OPTION} is missing" in str(failed.value)
        assert place in str(failed.value)


def secret_file(folder: Path, mode: int, owner: int | None = None) -> str:
    file = folder / f"secret-{mode:o}"
    file.write_text("hush\n")
    file.chmod(mode)
    if owner is not None:
        os.chown(file, owner, -1)
    return f"${{file:{file}}}"


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_its_owner_alone_may_read_is_private(tmp_path: Path, mode: int) -> None:
    assert resolve_secret(secret_file(tmp_path, mode), OPTION) == "hush"


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (0o644, "can be read by others"),
        (0o444, "can be read by others"),
        (0o640, "can be read by others"),
        (0o604, "can be read by others"),
        (0o660, "can be changed by others"),
        (0o602, "can be changed by others"),
    ],
)
def test_a_file_that_others_may_read_or_change_is_refused_without_showing_it(
    tmp_path: Path, mode: int, why: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{why}: .* found mode 0{mode:o}") as failed:
        resolve_secret(secret_file(tmp_path, mode), OPTION)
    assert "hush" not in str(failed.value)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@needs_root
@pytest.mark.parametrize("mode", [0o640, 0o440])
def test_another_owner_may_give_its_group_the_right_to_read(tmp_path: Path, mode: int) -> None:
    assert resolve_secret(secret_file(tmp_path, mode, owner=12345), OPTION) == "hush"


@needs_root
@pytest.mark.parametrize("mode", [0o644, 0o444, 0o660])
def test_another_owner_doesnt_make_an_open_file_private(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigurationError, match="by others"):
        resolve_secret(secret_file(tmp_path, mode, owner=12345), OPTION)


@pytest.mark.parametrize("mode", ["0444", "0644"])
def test_a_mounted_secret_is_private_by_its_mount(tmp_path: Path, mode: str) -> None:
    """As Kubernetes mounts one: root's file on a read-only tmpfs, behind a link."""
    (tmp_path / "mount").mkdir()
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom airflow_cdc_provider.secrets import resolve_secret\n"
        "print(resolve_secret('${file:' + sys.argv[1] + '}', 'x'))\n"
    )
    script = f"""
        set -e
        mount -t tmpfs none {tmp_path}/mount
        mkdir {tmp_path}/mount/..2026
        echo hush > {tmp_path}/mount/..2026/key
        chmod {mode} {tmp_path}/mount/..2026/key
        ln -s ..2026/key {tmp_path}/mount/key
        {sys.executable} {program} {tmp_path}/mount/key 2>&1 | grep -q 'read by others'
        mount -o remount,ro none {tmp_path}/mount
        exec {sys.executable} {program} {tmp_path}/mount/key
    """
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if "unshare" in done.stderr:
        pytest.skip(f"this machine lets nobody mount: {done.stderr}")
    assert (done.stdout, done.stderr) == ("hush\n", "")
