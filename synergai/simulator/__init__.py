"""The other driver of the scheduling core: virtual time, workloads, bounds and comparisons."""
