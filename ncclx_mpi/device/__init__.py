"""Device arrays in communicating calls: whose memory it is, in which order it may be touched, and how it gets to the other ranks."""
