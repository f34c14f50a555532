"""Runtime candidates of schema 6: read, held to every rule, packed, unpacked, described to a registry, listed."""
