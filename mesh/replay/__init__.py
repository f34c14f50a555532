"""From a receipt, a disclosure and an engine to a verdict."""
