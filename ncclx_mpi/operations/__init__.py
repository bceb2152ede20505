"""What requests stand for: one class for each kind of operation that can be waited for, and the thread that moves some of them on."""
