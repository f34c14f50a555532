"""Side-by-side measurements: what this package does beside the least it could do, or beside what others do, in one run.

`python -m bench` writes results.json and RESULTS.md beside this file and prints the table.
"""
