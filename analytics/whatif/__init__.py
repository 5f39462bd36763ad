"""What if: the recorded jobs of a pool, replayed under other policies or on other devices.

    record     what the warehouse knows of a period
    costs      what launching, stopping and restarting took there
    workload   the jobs as work for the simulator
    running    the replay
    outcomes   its figures, beside those of reality
    caveats    what was known, measured and assumed

`replay` does all of this and returns plain data, for the command line, the report and the dashboard.
"""

from gpu_flows.analytics.whatif.outcomes import Figures, JobOutcome, UserEffect
from gpu_flows.analytics.whatif.record import NoRecord
from gpu_flows.analytics.whatif.replay import Choice, Scenario, WhatIf, replay

__all__ = ["Choice", "Figures", "JobOutcome", "NoRecord", "Scenario", "UserEffect", "WhatIf", "replay"]
