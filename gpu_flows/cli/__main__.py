"""`python -m gpu_flows.cli` is `gpu-flows`."""

from gpu_flows.cli import main

main()
