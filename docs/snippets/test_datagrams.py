# run by: run_datagram_tests.py
import pytest
from datagrams import Datagrams

from ncclx_mpi.testing.transport import TransportTests


class TestDatagrams(TransportTests):
    @pytest.fixture
    def pair(self):
        ends = Datagrams(0, 2), Datagrams(1, 2)
        yield ends
        for end in ends:
            end.close()
