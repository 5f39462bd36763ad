"""Metrics of random histories, compared with counts over every second."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
from analytics_history import History


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_agree_with_counting_seconds(history: History, seed: int) -> None:
    expected = RandomHistory(random.Random(seed))
    expected.record(history)
    for device_id, (held, available) in expected.count_devices().items():
        assert history.query(
            f"select held_s, available_s from allocation where scope = 'device' and device_id = '{device_id}'"
        ) == [(held, available)]
    for device_id, used in expected.count_utilization().items():
        assert history.query(
            f"select utilization_percent from utilization_by_device where device_id = '{device_id}'"
        ) == [(pytest.approx(used),)]
    summary = history.query(
        "select policy, allocation_percent, utilization_percent from policy_use where experiment is null"
    )
    policies = expected.count_policies()
    assert {policy: (allocation, used) for policy, allocation, used in summary} == {
        policy: (pytest.approx(100 * allocation), None if used is None else pytest.approx(used))
        for policy, (allocation, used) in policies.items()
    }


class RandomHistory:
    """Facts at whole seconds, and the metrics counted in a loop over them."""

    length = 240

    def __init__(self, dice: random.Random) -> None:
        self.devices = {f"g{number}": dice.randrange(0, 40) for number in range(3)}
        self.health = [
            (dice.randrange(40, self.length), device, dice.choice(["sick", "gone", "healthy", "healthy"]))
            for device in self.devices
            for _ in range(3)
        ]
        self.holds = []  # job, device, submitted, since, until or None while it runs
        for number in range(10):
            since = dice.randrange(40, self.length - 20)
            until = since + dice.randrange(1, 60)
            chosen = dice.sample(sorted(self.devices), dice.randrange(1, 3))
            submitted = since - dice.randrange(0, 30)
            self.holds += [
                (f"j{number}", device, submitted, since, until if until < self.length else None)
                for device in chosen
            ]
        self.swaps = sorted(
            {dice.randrange(0, self.length): dice.choice(["a", "b", "c"]) for _ in range(4)}.items()
        )
        self.samples = {device: self._sample(dice, start) for device, start in self.devices.items()}

    def _sample(self, dice: random.Random, at: int) -> list[tuple[int, float | None]]:
        readings: list[tuple[int, float | None]] = []
        while at < self.length:
            readings.append((at, dice.choice([None, dice.uniform(0, 100), dice.uniform(0, 100)])))
            at += dice.randrange(1, 15)
        return readings

    def record(self, history: History) -> None:
        for device, since in self.devices.items():
            history.device(device, since)
            history.sample(device, *self.samples[device])
        for at, device, kind in sorted(self.health):
            history.health(device, at, kind)
        for at, policy in self.swaps:
            history.swap(at, "", policy)
        for job in sorted({hold[0] for hold in self.holds}):
            holds = [hold for hold in self.holds if hold[0] == job]
            _, _, submitted, since, until = holds[0]
            history.job(job, submitted)
            history.start(job, since, *(device for _, device, *_ in holds))
            if until is not None:
                history.stop(job, until)
                history.end(job, until)
        history.swap(self.length, "", "last")  # the last fact

    def available(self, device: str, second: int) -> bool:
        kind = "healthy" if second >= self.devices[device] else "unknown"
        for at, changed, new_kind in sorted(self.health):
            if changed == device and self.devices[device] <= at <= second:
                kind = new_kind
        return kind == "healthy"

    def held(self, device: str, second: int) -> bool:
        return any(
            device == held and since <= second < (until or self.length)
            for _, held, _, since, until in self.holds
        )

    def reading(self, device: str, second: int) -> float | None:
        """The reading before this second, if another one follows and it is at most ten seconds old."""
        before = [(at, value) for at, value in self.samples[device] if at <= second]
        if not before or len(before) == len(self.samples[device]) or second - before[-1][0] >= 10:
            return None
        return before[-1][1]

    def policy(self, second: int) -> str | None:
        return next((policy for at, policy in reversed(self.swaps) if at <= second), None)

    def count_devices(self) -> dict[str, tuple[int, int]]:
        counts = {}
        for device in self.devices:
            usable = [second for second in range(self.length) if self.available(device, second)]
            counts[device] = (sum(self.held(device, second) for second in usable), len(usable))
        return counts

    def count_utilization(self) -> dict[str, float]:
        known = {
            device: [
                value for second in range(self.length) if (value := self.reading(device, second)) is not None
            ]
            for device in self.devices
        }
        return {device: statistics.mean(values) for device, values in known.items() if values}

    def count_policies(self) -> dict[str, tuple[float, float | None]]:
        first = min(submitted for _, _, submitted, _, _ in self.holds)
        last = max(until or self.length for *_, until in self.holds)
        counts = {}
        for policy in {policy for _, policy in self.swaps}:
            moments = [
                (device, second)
                for second in range(first, last)
                if self.policy(second) == policy
                for device in self.devices
            ]
            usable = [moment for moment in moments if self.available(*moment)]
            known = [value for moment in moments if (value := self.reading(*moment)) is not None]
            if usable:
                share = sum(self.held(*moment) for moment in usable) / len(usable)
                counts[policy] = (share, statistics.mean(known) if known else None)
        return counts
