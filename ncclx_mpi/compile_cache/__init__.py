"""The cache of compiled images: what is in it, made at the first start, pruned when it is out of date."""
