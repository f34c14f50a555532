"""Programs that run in a peer's own virtual environment. They import the peer and nothing of this project."""
