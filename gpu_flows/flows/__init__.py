"""The flows that ship with gpu-flows (`command`, `container`, `train`), and the processes that they run.

Deploy them as they are, or read them as examples. Not here: training itself (`training`), and how a job's
own process is started on its devices (`runtimes`).
"""
