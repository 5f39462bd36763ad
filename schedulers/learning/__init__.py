"""What a learned policy needs: features of jobs, the network that scores them, and its weights.

numpy is enough for all of it. Training is in `gpu_flows.learning`; the environment in which the network is
trained is `gpu_flows.schedulers.simulation.environment`.
"""
