"""Where devices come from: NVML, or a declaration."""
