"""The UCX of this process, for the tests of its transport."""

from __future__ import annotations

import pytest

from transports.ucx.library import Library, LibraryError, find


@pytest.fixture(scope="module")
def library() -> Library:
    try:
        found = find()
    except LibraryError as error:
        pytest.skip(str(error))
    if found.version[:2] == (1, 20):
        pytest.skip("UCX 1.20 finds no way to this host by the loopback interface")
    return found
