"""What ``ncclx info`` and ``ncclx doctor`` say of GPUs."""

from __future__ import annotations

import pytest

from ncclx_mpi.cli import doctor, info
from ncclx_mpi.testing.driver_double import Double
from numba_kernels.cuda import loaded, pack
from numba_kernels.cuda.ptx import CompilerMissing


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "load", lambda: None)
    assert info.gpus() == ["none: no CUDA driver is installed (libcuda.so.1)"]
    found = doctor.check_gpu()
    assert found.is_good
    assert "no CUDA driver" in found.text


def test_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_kernel: object, arch: tuple[int, int]) -> tuple[bytes, str]:
        raise CompilerMissing("pack", arch, "for a test")

    with Double(1, devices=2):
        one, other = info.gpus()
        assert one.startswith("0: sm_90, 132 multiprocessors, GPU-")
        assert one[1:] != other[1:]
        monkeypatch.setattr(type(pack.KERNELS[0]), "cubin", lambda _kernel, _arch: (b"", "pack"))
        assert doctor.check_gpu() == doctor.Finding(True, "2 GPU(s) of sm_90; kernels can be made")
        monkeypatch.setattr(type(pack.KERNELS[0]), "cubin", missing)
        found = doctor.check_gpu()
        assert found.is_good is None
        assert "pip install" in found.text
