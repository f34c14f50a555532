"""Grants: what may be served, stated in a signed chain that its bearer can narrow by himself. Pure: time, revocation,
counters and random bytes are arguments."""
