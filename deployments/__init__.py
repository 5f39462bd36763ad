"""What is deployed with gpu-flows: `prefect.yaml`, the image, and flows that coordinate or maintain.

The flows are the benchmark with its workloads, and the retraining of predictors (`retrain`) and of the policy
`rl` (`rl_retrain`).

Not here: the other flows (`gpu_flows.flows`), and the setup of pool and blocks (`gpu_flows.bootstrap`).
"""

if __name__ == "deployments":
    raise ImportError("import gpu_flows.deployments, not deployments")
