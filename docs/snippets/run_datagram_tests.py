# ranks: none
# datagram_messages.py, datagram_transfers.py and datagrams.py, as test_datagrams.py proves them
from show_tests import show

show("test_datagrams.py")
