"""The facts: one frozen class per table, one module per topic.

Each fact is written once, by the part that observes it.

The fields of a class are the columns of its table, in order (a test compares them with the schema),
so the recorder needs no mapping. Times are seconds since the epoch here and TIMESTAMPTZ in SQL; the
column is `time` because `at` is a reserved word in DuckDB.

A worker that dies may write a fact again after its restart. In a table with a primary key the
second copy changes nothing.
"""

from __future__ import annotations

from gpu_flows.analytics.facts.attempts import (
    Allocated,
    AttemptEnded,
    AttemptInterrupted,
    AttemptStarted,
    SavedWork,
)
from gpu_flows.analytics.facts.base import FACTS, AttemptFact, Fact, PoolFact
from gpu_flows.analytics.facts.devices import (
    DeviceEvent,
    DeviceSeen,
    NodeSeen,
    Sampled,
)
from gpu_flows.analytics.facts.forecasts import (
    Forecast,
)
from gpu_flows.analytics.facts.jobs import (
    JobEnded,
    JobQueued,
    JobSubmitted,
)
from gpu_flows.analytics.facts.learning import (
    LearningStep,
)
from gpu_flows.analytics.facts.pool import (
    Decided,
    ExperimentRan,
    Offered,
    ProtectionSet,
    Swapped,
)
from gpu_flows.analytics.facts.predictions import (
    FeaturesSeen,
    MemoryPeak,
    Predicted,
    ProgressReported,
)
from gpu_flows.analytics.facts.shadows import (
    Regretted,
    ShadowDecided,
    ShadowProjected,
)

__all__ = [
    "FACTS",
    "Allocated",
    "AttemptEnded",
    "AttemptFact",
    "AttemptInterrupted",
    "AttemptStarted",
    "Decided",
    "DeviceEvent",
    "DeviceSeen",
    "ExperimentRan",
    "Fact",
    "FeaturesSeen",
    "Forecast",
    "JobEnded",
    "JobQueued",
    "JobSubmitted",
    "LearningStep",
    "MemoryPeak",
    "NodeSeen",
    "Offered",
    "PoolFact",
    "Predicted",
    "ProgressReported",
    "ProtectionSet",
    "Regretted",
    "Sampled",
    "SavedWork",
    "ShadowDecided",
    "ShadowProjected",
    "Swapped",
]
