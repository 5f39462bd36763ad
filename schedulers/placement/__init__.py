"""Placements: they choose the devices for a job that the policy wants to start.

`base` defines the interface and the shared helpers, `options` lets users choose a placement by name.
Every other module is one placement; a new module adds a placement and needs no registration. Which
job starts when does not belong here; see `policies`.
"""
