"""Jobs in containers, on one or many Docker hosts: any image, with exactly the assigned devices."""
