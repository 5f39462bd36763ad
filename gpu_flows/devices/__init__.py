"""Where the devices of a pool come from, and their readings.

A source of devices implements `DeviceSource` (`base`): it lists nodes with their devices and reads how busy
and how healthy each device is. There are three: `nvml` (the GPUs of this machine), `docker` (the devices of
Docker hosts) and `simulated` (declared devices). `sources` opens the one that a cluster block asks for,
`sampler` reads it at a fixed interval, and `telemetry` passes the readings to the engine and the history.

To add a source, write a module with a class that implements `DeviceSource`, and open it in
`sources.open_devices`. If it reads NVML elsewhere, a `Probe` (`probe`) for `NvmlDevices` is enough:
`process_probe` and `container_probe` run the script `nvml_probe` in a child process or in a container.

What does not belong here: which device a job gets (`schedulers`), and how a job is started on it
(`runtimes`).
"""
