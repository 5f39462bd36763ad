"""Jobs that can leave a device and come back: what worker and job agree on, and help for the job's side."""
