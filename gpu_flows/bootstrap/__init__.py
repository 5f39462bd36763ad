"""Creating what a pool needs: the work pool, its blocks, and a whole local stack with server and worker.

Here: what `gpu-flows up`, `gpu-flows demo`, the tests and the benchmarks start from. Not here: the
command line around it (`cli`).
"""
