"""Meters of energy, and the rule that divides what they count among serves."""
