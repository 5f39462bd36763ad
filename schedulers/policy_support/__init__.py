"""What several policies share: ways to walk the waiting queue, backfill, elastic sizes, indices, solvers.

Not here: anything that only one policy needs, unless it is a method of its own (Gavel's linear program).
"""
