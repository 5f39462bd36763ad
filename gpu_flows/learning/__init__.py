"""Training of the policy `rl`: masked PPO in the simulator. torch and sb3-contrib are imported only here.

The features, the network and its weights are in `gpu_flows.schedulers.learning`, the environment is
`gpu_flows.schedulers.simulation.environment`.
"""
