"""The key in the user's home from which tokens follow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ncclx_mpi.bootstrap import secret


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_one_key_whoever_makes_it(home):
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(secret.token_of, ["job 1"] * 32))
    assert len(tokens) == 1
    assert len(next(iter(tokens))) == 64
    assert secret.token_of("job 2") not in tokens
    (key,) = (home / ".config" / "ncclx_mpi").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600


def test_a_key_that_others_may_read(home):
    secret.token_of("job")
    (home / ".config" / "ncclx_mpi" / "key").chmod(0o640)
    with pytest.raises(RuntimeError, match="is not yours alone"):
        secret.token_of("job")


def test_no_home(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home / "file"))
    (home / "file").write_text("")
    with pytest.raises(RuntimeError, match="NCCLX_MPI_TOKEN"):
        secret.token_of("job")
