"""Ships: the pool, the blocks' defaults, the deployments and the benchmark workloads."""

if __name__ == "deployments":
    raise ImportError("import gpu_flows.deployments, not deployments")
