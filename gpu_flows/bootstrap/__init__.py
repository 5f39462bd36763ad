"""Creates what a pool needs: the work pool, its blocks, and a complete local stack with server and worker.

Here: what `gpu-flows up`, `gpu-flows demo`, the tests and the benchmarks use to start. Not here: the command
line (`cli`).
"""
