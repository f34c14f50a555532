"""Starting engines on other hosts, and a record of exactly what was started: recipes, clusters, pins, plans."""
