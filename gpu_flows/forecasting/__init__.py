"""Forecasts of a live pool: when its jobs start and end, and what would let them start earlier.

A child process of the worker follows the pool's state, writes it to a file for those who ask what if, and
simulates it forward. Here: the worker's side (`forecaster`), the child's side (`child`), what they tell each
other (`messages`), and what is recorded (`record`). Not here: the simulation itself (`schedulers.forecast`).
"""
