"""Inputs and results of jobs as files: readers of inputs, and shards of results.

Nothing here knows a gateway. NumPy is needed; pyarrow and fsspec are imported where a Parquet file
or a URL is used.
"""
