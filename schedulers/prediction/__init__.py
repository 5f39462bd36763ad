"""Predictors: how much memory and time a job needs, and how much jobs on one device slow each other down.

Here belongs what is computed from numbers alone. What traces a model with torch, reads the warehouse or keeps
files is in `gpu_flows.prediction`.
"""
