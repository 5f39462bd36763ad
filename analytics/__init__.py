"""Remembers and answers: facts, the recorder, views and SQL. Knows nothing of Prefect or Docker."""

if __name__ == "analytics":
    raise ImportError("import gpu_flows.analytics, not analytics")
