# ranks: none
# conftest.py and test_ring.py, by show_tests.py
from show_tests import show

show("test_ring.py")
