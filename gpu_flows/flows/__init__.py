"""The flows that ship with gpu-flows, one per file: deploy them as they are, or read them as examples."""
