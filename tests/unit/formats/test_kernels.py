from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_cdc_provider.formats import kernels

PACKAGE = Path(str(kernels.__file__)).parents[1]
CALLER = """
from airflow_cdc_provider.formats.kernels import kernel_folder, walker
from airflow_cdc_provider.callee import add
from pathlib import Path

@walker
def call(number):
    return add(number)

if __name__ != "__main__":
    folder = kernel_folder(Path(__file__))

    print(call(1), folder)
"""
CALLEE = """
from airflow_cdc_provider.formats.kernels import walker

@walker
def add(number):
    return number + {}
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Make a package of the same name with two kernels, one calling the other."""
    root = tmp_path / "lib" / "airflow_cdc_provider"
    (root / "formats").mkdir(parents=True)
    for folder in (root, root / "formats"):
        (folder / "__init__.py").touch()
    for file in kernels._with_imports(PACKAGE / "formats" / "kernels.py"):
        shutil.copy(file, root / file.relative_to(PACKAGE))
    (root / "caller.py").write_text(CALLER)
    (root / "callee.py").write_text(CALLEE.format(1))
    return root


def _call(package: Path, **environment: str) -> tuple[int, str, str]:
    """Call the kernel in a new process: its result, the folder, and what was said on stderr."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", "import airflow_cdc_provider.caller"],
        env={**inherited, "PYTHONPATH": str(package.parent), **environment},
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    result, folder = done.stdout.split()
    return int(result), folder, done.stderr


def test_a_kernel_is_compiled_again_when_a_callee_in_another_file_changes(
    package: Path, tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    result, folder, _ = _call(package, XDG_CACHE_HOME=cache)
    assert result == 2
    assert folder.startswith(cache)
    assert _call(package, XDG_CACHE_HOME=cache)[:2] == (2, folder)
    (package / "callee.py").write_text(CALLEE.format(100))
    result, other, _ = _call(package, XDG_CACHE_HOME=cache)
    assert result == 101
    assert other != folder
    assert any(Path(folder).rglob("*.nbc"))


def test_of_processes_that_need_a_kernel_at_once_one_compiles_it(package: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    lock = Path(_call(package, XDG_CACHE_HOME=cache)[1], "caller", "call.lock")
    for file in lock.parent.glob("*.nb[ic]"):
        file.unlink()
    says = "import airflow_cdc_provider.caller as c; print(sum(c.call.stats.cache_misses.values()))"
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        both = [
            subprocess.Popen(
                [sys.executable, "-c", says],
                env={**os.environ, "PYTHONPATH": str(package.parent), "XDG_CACHE_HOME": cache},
                cwd=package.parent,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        deadline = time.monotonic() + 60
        while not all(_has_open(process.pid, lock) for process in both):
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in both)
            time.sleep(0.02)
        assert not list(lock.parent.glob("*.nbi")), "both wait"
    misses = [int(process.communicate(timeout=60)[0].splitlines()[-1]) for process in both]
    assert sorted(misses) == [0, 1]


def _has_open(pid: int, path: Path) -> bool:
    descriptors = Path(f"/proc/{pid}/fd")
    return any(descriptor.resolve() == path for descriptor in descriptors.iterdir())


def test_where_the_users_cache_cannot_be_written_the_packages_own_folder_is_used(
    package: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    result, folder, said = _call(package, XDG_CACHE_HOME=str(file))
    assert result == 2
    assert folder.startswith(str(package / "__pycache__"))
    assert any(Path(folder).rglob("*.nbc"))
    assert "RuntimeWarning" not in said


def test_without_any_folder_kernels_still_run_and_the_remedy_is_said(package: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result, folder, said = _call(package, NUMBA_CACHE_DIR=str(file), TMPDIR=str(file))
    assert (result, folder) == (2, "None")
    assert "set NUMBA_CACHE_DIR" in said


def test_numbas_own_setting_is_left_alone() -> None:
    import numba

    before = numba.config.CACHE_DIR
    kernels.walker(lambda number: number)
    assert before == numba.config.CACHE_DIR


def test_the_same_sources_in_another_folder_share_machine_code(package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    _, folder, _ = _call(package, XDG_CACHE_HOME=str(cache))
    compiled = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")}
    other = tmp_path / "other" / package.name
    shutil.copytree(package, other)
    assert _call(other, XDG_CACHE_HOME=str(cache))[:2] == (2, folder)
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")} == compiled != {}
