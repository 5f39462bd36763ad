"""Small helpers that every package may use.

`retry` (back-off, waiting), `files` (atomic writes), `validation` (readable errors), `forms` (models that the
UI shows as forms), `discovery` (classes found by file), `clock`, and `urls` (documentation and logos).

Standard library and pydantic only. Not here: anything that knows what a job, a device or a run is.
"""
