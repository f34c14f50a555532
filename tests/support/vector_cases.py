"""The conformance cases, made once for the files that ask about them."""

from conformance.regenerate import all_cases

CASES = tuple(all_cases())
