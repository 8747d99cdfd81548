"""Flows run for real: in this process, or on Dask."""
