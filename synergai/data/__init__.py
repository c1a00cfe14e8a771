"""Inputs and results of jobs as files: readers of inputs, and shards of results.

Nothing here knows a gateway. NumPy is needed; pyarrow is imported where a Parquet file is used.
"""
