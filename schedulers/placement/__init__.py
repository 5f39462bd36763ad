"""Placements: which free devices a job gets, once a policy has chosen the job.

`base` defines what a placement is, `options` lets people choose one by name. Each other file is one
placement, and a new file is a new placement: nothing else needs to change.
"""
