"""A metered serving mesh with replayable receipts."""

__version__ = "0.1.0"
