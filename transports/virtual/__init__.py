"""A simulated network between ranks of one machine, for tests, tutorials and laptops: nodes that share nothing but packets."""
