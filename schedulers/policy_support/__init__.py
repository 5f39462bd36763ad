"""What policies share: starting jobs in order, making room, backfill, elastic sizes, durations, solvers.

Not here: anything that only one policy needs, unless it is a method of its own (Gavel's linear program).
"""
