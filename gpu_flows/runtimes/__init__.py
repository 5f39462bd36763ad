"""Carries plans out: one file per kind of place a job can run in."""
