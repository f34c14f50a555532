"""The conformance pack of mesh/1: what makes the vectors, what runs a client against them, and this package's client.

Nothing that makes a vector imports `mesh`: the vectors would then only say that `mesh` agrees with itself.
"""
