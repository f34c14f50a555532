"""The steward: the only path from a request to a sealed receipt."""
