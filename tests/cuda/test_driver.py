"""Which driver is in use."""

from typing import Any, cast

from numba_kernels.cuda import driver
from numba_kernels.cuda.driver import Driver


def test_no_driver_without_a_gpu_and_the_installed_one_until_it_is_taken_away() -> None:
    assert driver.current() is None
    double = cast(Driver, cast(Any, object()))
    driver.install(double)
    try:
        assert driver.current() is double
        assert driver.find() is double
    finally:
        driver.install(None)
    assert driver.current() is None
