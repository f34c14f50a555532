"""Engines that serve token ids, behind one protocol."""
