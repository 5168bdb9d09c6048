"""Other users of a machine can't place machine code: cached kernels are pickles, which execute anything."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numba
import pytest

from airflow_cdc_provider.formats import kernels
from tests.security.hostile_files import OTHER_USER

SOURCE: Final = Path(__file__)


@pytest.fixture(autouse=True)
def again() -> Iterator[None]:
    """Choose the folder again, for each test."""
    caches = (kernels._cache_folder, kernels.kernel_folder)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def _chosen(monkeypatch: pytest.MonkeyPatch, cache: Path, *, last: Path) -> Path | None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(cache))
    monkeypatch.setenv("TMPDIR", str(last))
    return kernels.kernel_folder(SOURCE)


def _mode(mode: int) -> Callable[[Path], None]:
    return lambda folder: folder.chmod(mode)


def _link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def _give_away(path: Path) -> None:
    os.chown(path, OTHER_USER, OTHER_USER)


WEAK: Final[dict[str, Callable[[Path], None]]] = {
    **{f"mode 0{mode:o}": _mode(mode) for mode in (0o777, 0o775, 0o707, 0o720, 0o702, 0o1777)},
    **({"another user's": _give_away} if os.geteuid() == 0 else {}),
}
WEAK_ABOVE: Final = {name: make for name, make in WEAK.items() if name != "mode 01777"}


@pytest.mark.parametrize("weak", [*WEAK, "link"])
def test_a_cache_that_others_may_change_is_not_used(
    weak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(0o700)
    {**WEAK, "link": _link}[weak](cache)
    private = tmp_path / "private"
    private.mkdir(0o700)
    folder = _chosen(monkeypatch, cache, last=private)
    assert folder is not None
    assert folder.is_relative_to(private / f"airflow-cdc-provider-{os.geteuid()}"), "a private one instead"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("weak", WEAK_ABOVE)
@pytest.mark.parametrize("level", [1, 2])
def test_a_cache_that_others_may_replace_is_not_used_and_that_is_said(
    weak: str, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "a" / "b" / "cache"
    cache.mkdir(0o700, parents=True)
    WEAK[weak](cache.parents[level - 1])
    with pytest.warns(
        RuntimeWarning, match=r"can't be cached.*set NUMBA_CACHE_DIR to a folder that only this"
    ) as said:
        assert _chosen(monkeypatch, cache, last=cache) is None
    assert str(cache.parents[level - 1]) in str(said[0].message)


@pytest.mark.parametrize("weak", [*WEAK, "link"])
def test_the_private_folder_in_tmp_may_be_another_users_first(
    weak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / f"airflow-cdc-provider-{os.geteuid()}" / "kernels"
    planted.mkdir(0o700, parents=True)
    {**WEAK, "link": _link}[weak](planted)
    with pytest.warns(RuntimeWarning, match=str(planted)):
        assert _chosen(monkeypatch, Path("/proc/none"), last=tmp_path) is None


@pytest.mark.parametrize("weak", WEAK_ABOVE)
def test_what_links_above_the_cache_lead_to_counts(
    weak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weak" / "real" / "cache").mkdir(0o700, parents=True)
    (tmp_path / "first").symlink_to("second/real")
    (tmp_path / "second").symlink_to(tmp_path / "weak")
    WEAK[weak](tmp_path / "weak")
    with pytest.warns(RuntimeWarning, match=f"{tmp_path}/(second/../)?(weak|second)"):
        assert _chosen(monkeypatch, tmp_path / "first" / "cache", last=Path("/proc")) is None
    (tmp_path / "weak").chmod(0o755)
    if weak != "another user's":
        kernels._cache_folder.cache_clear()
        kernels.kernel_folder.cache_clear()
        assert _chosen(monkeypatch, tmp_path / "first" / "cache", last=Path("/proc")) is not None


def test_links_in_a_circle_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.warns(RuntimeWarning, match="can't be cached"):
        assert _chosen(monkeypatch, tmp_path / "a" / "cache", last=Path("/proc")) is None


def test_a_folder_with_the_sticky_bit_may_hold_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    with warnings.catch_warnings(action="error"):
        folder = _chosen(monkeypatch, shared / "mine", last=Path("/proc"))
    assert folder is not None
    assert folder.is_relative_to(shared / "mine")


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022])
def test_folders_are_private_whatever_the_umask(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(umask)
    try:
        folder = _chosen(monkeypatch, tmp_path / "x" / "y", last=Path("/proc"))
        assert folder is not None
        (folder / "test").mkdir()  # as Numba makes its own
        (folder / "test" / "kernel.nbi").touch()
    finally:
        os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in (folder, folder.parent, folder.parents[1])] == [0o700] * 3
    kernels.kernel_folder.cache_clear()
    with warnings.catch_warnings(action="error"):
        assert kernels.kernel_folder(SOURCE) == folder, "nobody else can reach the files in it"


@pytest.mark.parametrize("weak", [*WEAK_ABOVE, "link"])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_kernels_that_others_wrote_or_may_change_are_not_loaded(
    weak: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    folder = _chosen(monkeypatch, cache, last=Path("/proc"))
    assert folder is not None
    folder.chmod(0o755)
    file = folder / "test" / "kernel.nbi"
    file.parent.mkdir()
    file.touch()
    if weak == "link" and what == "file":
        return
    {**WEAK, "link": _link}[weak](folder if what == "folder" else file)
    kernels.kernel_folder.cache_clear()
    with pytest.warns(RuntimeWarning, match="can't be cached.*Remove"):
        assert kernels.kernel_folder(SOURCE) is None


class _Planted:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


KERNEL = """
from airflow_cdc_provider.formats.kernels import kernel_folder, walker
from pathlib import Path

@walker
def one():
    return 1

assert one() == 1
print(kernel_folder(Path(__file__)))
"""


def test_a_planted_pickle_is_not_executed(tmp_path: Path) -> None:
    """The attack itself: a shared ``NUMBA_CACHE_DIR``, as executors may be given."""
    (tmp_path / "module.py").write_text(KERNEL)
    shared = tmp_path / "shared"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(shared), "TMPDIR": "/proc", "PYTHONPATH": os.getcwd()}

    def run() -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, tmp_path / "module.py"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip(), done.stderr

    run()
    indexes = list(shared.rglob("*.nbi"))
    assert indexes
    for index in indexes:
        index.write_bytes(pickle.dumps(_Planted(tmp_path / "executed")))
    shared.chmod(0o777)
    folder, said = run()
    assert (folder, "can't be cached" in said) == ("None", True)
    assert not (tmp_path / "executed").exists()
