"""Prediction for real jobs: tracing a training step, learning from the warehouse, keeping learned predictors.

The predictors themselves are in `gpu_flows.schedulers.prediction`. torch and scikit-learn are extras, so each
is imported only inside the functions that need it.
"""
