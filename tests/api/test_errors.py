"""The exception class, codes, classes and strings."""

from __future__ import annotations

import pickle

import pytest

from ncclx_mpi import errors


def test_code_carries_class_and_message() -> None:
    with pytest.raises(errors.Exception, match="rank 9 is not in 0 to 3") as caught:
        errors.fail(errors.ERR_RANK, "rank 9 is not in 0 to 3")
    error = caught.value
    assert error.Get_error_class() == errors.ERR_RANK
    assert error.error_code == int(error) != errors.ERR_RANK
    assert errors.Get_error_class(int(error)) == errors.ERR_RANK
    assert errors.Get_error_string(int(error)) == str(error) == error.error_string
    assert repr(error) == f"MPI.Exception({int(error)})"


def test_behaves_like_its_code() -> None:
    error = errors.Exception(errors.ERR_TYPE)
    assert error == errors.ERR_TYPE == error
    assert error == errors.Exception(errors.ERR_TYPE)
    assert error != errors.ERR_COUNT
    assert errors.Exception(errors.SUCCESS) < error <= errors.Exception(errors.ERR_LASTCODE)
    assert error > errors.SUCCESS
    assert hash(error) == hash(errors.ERR_TYPE)
    assert error and not errors.Exception()
    assert errors.Exception(-1) == errors.ERR_UNKNOWN


@pytest.mark.parametrize("name", [name for name in vars(errors) if name.startswith("ERR_")])
def test_classes_have_strings(name: str) -> None:
    code = getattr(errors, name)
    assert errors.Get_error_class(code) == code
    assert errors.Get_error_string(code)
    assert str(errors.Exception(code)) == errors.Get_error_string(code)


def test_unknown_codes_have_a_class() -> None:
    assert errors.Get_error_class(-5) == errors.ERR_UNKNOWN
    assert errors.Get_error_class(1 << 40) == errors.ERR_UNKNOWN
    assert errors.Get_error_string(250) == errors.Get_error_string(errors.ERR_UNKNOWN)


def test_message_survives_many_others_and_a_pickle() -> None:
    error = errors.error(errors.ERR_TAG, "the first")
    for number in range(3000):
        errors.error(errors.ERR_OTHER, f"number {number}")
    assert str(error) == "the first"
    assert errors.Get_error_class(int(error)) == errors.ERR_TAG
    state = error.__reduce__()
    assert state[1] == (int(error),)
    assert pickle.loads(pickle.dumps(state[2])) == {"_text": "the first"}


def test_user_classes_codes_and_strings() -> None:
    error_class = errors.Add_error_class()
    assert error_class > errors.ERR_LASTCODE
    assert errors.last_used_code() == error_class
    assert errors.Get_error_string(error_class) == ""
    errors.Add_error_string(error_class, "mine")
    code = errors.Add_error_code(error_class)
    assert errors.Get_error_class(code) == error_class
    assert errors.Get_error_string(error_class) == "mine"
    with pytest.raises(errors.Exception):
        errors.Remove_error_class(error_class)
    errors.Remove_error_code(code)
    with pytest.raises(errors.Exception):
        errors.Remove_error_code(code)
    with pytest.raises(errors.Exception, match="Remove_error_string"):
        errors.Remove_error_class(error_class)
    errors.Remove_error_string(error_class)
    errors.Remove_error_class(error_class)
    for remove in (errors.Remove_error_class, errors.Remove_error_code, errors.Remove_error_string):
        with pytest.raises(errors.Exception):
            remove(0)
