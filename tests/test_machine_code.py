"""Machine code that is cached on disk is executed. So it is read only where nobody else could have written it."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from counterveil.algebra import compiled as machine_code
from planted import Planted

STRANGER = 54_321
PROGRAM = """
from counterveil.algebra.compiled import compiled
def twice(x):
    return 2 * x
print(compiled(twice)(21))
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners and modes here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of our own, three below the test's, with two files."""
    made = tmp_path / "parent" / "between" / "kept"
    made.mkdir(parents=True)
    for place in (made.parent.parent, made.parent, made):
        place.chmod(0o755)
    for name in ("a.nbi", "a.1.nbc"):
        (made / name).touch()
        (made / name).chmod(0o644)
    return made


def run(script: Path, cache: Path, umask: int = 0o022) -> None:
    """Run the program in a process of its own; it must print the right result, whatever the cache holds."""
    ran = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        umask=umask,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "42\n"


def test_a_folder_of_our_own_is_ours(folder: Path) -> None:
    assert machine_code._is_ours(str(folder))
    assert not machine_code._is_ours(os.path.relpath(folder))  # a relative path can come to mean another folder
    assert machine_code._is_ours(f"{folder}/../../between/./kept//")
    for path in folder.iterdir():
        path.unlink()
    assert machine_code._is_ours(str(folder))


WRONG: dict[str, Callable[[Path], object]] = {
    "a folder that its group can write": lambda kept: kept.chmod(0o775),
    "a folder that others can write": lambda kept: kept.chmod(0o757),
    "a folder that all can write, though sticky": lambda kept: kept.chmod(0o1777),
    "a parent that its group can write": lambda kept: kept.parent.chmod(0o775),
    "a parent that others can write": lambda kept: kept.parent.chmod(0o757),
    "a parent's parent that its group can write": lambda kept: kept.parent.parent.chmod(0o775),
    "a file that its group can write": lambda kept: (kept / "a.nbi").chmod(0o664),
    "a file that others can write": lambda kept: (kept / "a.1.nbc").chmod(0o646),
    "a link among the files": lambda kept: (kept / "b.nbi").symlink_to(kept / "a.nbi"),
    "a link to nothing": lambda kept: (kept / "b.nbi").symlink_to(kept / "none"),
    "a pipe among the files": lambda kept: os.mkfifo(kept / "b.nbi", 0o600),
    "a folder among the files": lambda kept: (kept / "b.nbi").mkdir(0o700),
    "no folder": lambda kept: kept.rename(kept.parent / "elsewhere"),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_what_others_could_have_written_is_not_ours(change: Callable[[Path], object], folder: Path) -> None:
    assert machine_code._is_ours(str(folder))
    change(folder)
    assert not machine_code._is_ours(str(folder))


def test_a_sticky_folder_is_fine_on_the_way(folder: Path) -> None:
    folder.parent.chmod(0o1777)
    assert machine_code._is_ours(str(folder))
    folder.parent.chmod(0o777)
    assert not machine_code._is_ours(str(folder))


def test_links_are_followed_and_so_is_who_can_change_them(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "direct").symlink_to(folder)
    (tmp_path / "above").symlink_to("parent/between")
    (tmp_path / "twice").symlink_to("above")
    ways = [str(tmp_path / "direct"), str(tmp_path / "above" / "kept"), str(tmp_path / "twice" / ".." / "between/kept")]
    assert all(map(machine_code._is_ours, ways))
    folder.parent.chmod(0o775)  # where the links lead
    assert not any(map(machine_code._is_ours, ways))
    folder.parent.chmod(0o755)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o775)  # where a link stands: others can put another in its place
    (tmp_path / "open" / "link").symlink_to(folder)
    assert not machine_code._is_ours(str(tmp_path / "open" / "link"))
    (tmp_path / "onwards").symlink_to("open/link")
    assert not machine_code._is_ours(str(tmp_path / "onwards"))
    (tmp_path / "round").symlink_to("round")
    assert not machine_code._is_ours(str(tmp_path / "round"))


@pytest.mark.parametrize("which", ["folder", "parent", "file", "link"])
def test_what_a_stranger_owns_is_not_ours(
    which: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    owned = {"folder": folder, "parent": folder.parent, "file": folder / "a.nbi", "link": link}[which]
    assert machine_code._is_ours(str(link))
    if os.getuid() == 0:
        os.chown(owned, STRANGER, -1, follow_symlinks=False)
    else:  # we may not change the owner, so pretend to be somebody else
        monkeypatch.setattr(os, "getuid", lambda: STRANGER)
    assert not machine_code._is_ours(str(link))


@pytest.mark.parametrize(("umask", "fine"), [(0o022, True), (0o077, True), (0o002, False), (0o020, False), (0, False)])
def test_who_lets_others_write_its_files_keeps_none(umask: int, fine: bool) -> None:
    before = os.umask(umask)
    try:
        assert machine_code._writes_for_itself() == fine
        assert os.umask(umask) == umask  # left as it was
    finally:
        os.umask(before)


@pytest.mark.slow
def test_planted_code_is_not_run_where_a_group_could_have_planted_it(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    script, cache, trace = tmp_path / "program.py", tmp_path / "cache", tmp_path / "trace"
    script.write_text(PROGRAM)
    run(script, cache)
    kept = [path for path in cache.rglob("*") if path.is_file()]
    assert {path.suffix for path in kept} == {".nbi", ".nbc"}
    for path in kept:
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.write_bytes(pickle.dumps(Planted(trace)))
    (index,) = [path for path in kept if path.suffix == ".nbi"]
    for place in (index, index.parent, cache):
        before = stat.S_IMODE(place.stat().st_mode)
        place.chmod(before | stat.S_IWGRP)
        run(script, cache)
        assert not trace.exists(), place
        place.chmod(before)
    run(script, cache, umask=0o002)
    assert not trace.exists()
    run(script, cache)
    assert trace.exists()  # the control: a cache of our own is read; a damaged one is not used
