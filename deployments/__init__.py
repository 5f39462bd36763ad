"""What is deployed with gpu-flows: the benchmark flow with its workloads, `prefect.yaml` and the image.

Not here: the other flows (`gpu_flows.flows`), and the setup of pool and blocks (`gpu_flows.bootstrap`).
"""

if __name__ == "deployments":
    raise ImportError("import gpu_flows.deployments, not deployments")
