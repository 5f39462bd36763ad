"""Small helpers that every package may use: atomic file writes, retries, readable validation errors.

Standard library and pydantic only. Not here: anything that knows what a job, a device or a run is.
"""
