"""The two ways in which most policies handle the queue: start the jobs that fit, or also preempt for them.

Both go through `queue.candidates()`, which skips the rest of a group once its first job does not fit. A
plan costs as much as there are different requests, however many jobs wait.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement.base import SharingOptions
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.policy_support.making_room import is_preemptible_after, make_room
from gpu_flows.schedulers.waiting_queue import Rank

FindDevices = Callable[[Job], tuple[Device, ...]]  # the devices for a job, or none
MakeRoom = Callable[[Job], bool]  # start a job in the place of others, if that is possible


def start_in_order(state: State, options: PlacementOptions, strict: bool = False) -> None:
    """Start waiting jobs in order where they fit. Strict: stop at the first one that does not fit."""
    start_in_order_on(state, lambda job: options.place(job, state.cluster), options, strict)


def start_in_order_on(
    state: State, find_devices: FindDevices, sharing: SharingOptions, strict: bool = False
) -> None:
    """Start waiting jobs in order on the devices that the policy itself finds for them."""
    cluster, draft = state.cluster, state.draft
    exclusive = sharing.sharing == "exclusive"
    if exclusive and not cluster.idle:
        return
    for job in state.queue.candidates(None if strict or not exclusive else cluster.idle):
        devices = find_devices(job)
        if devices:
            draft.start(job, devices)
            if exclusive and not cluster.idle:
                return
        elif strict:
            return


def run_by_rank(state: State, options: PlacementOptions, strict: bool = False) -> None:
    """Start waiting jobs in order where they fit, or would fit if running jobs of a later rank made room.

    The outcome is the same as if all jobs were walked in order and each that fits beside the earlier
    ones ran. Time alone never changes that outcome, so only new jobs and free devices are looked at.
    Strict: stop at the first job that neither fits nor can be given room.
    """
    if not state.can_preempt:
        return start_in_order(state, options, strict)

    def find_devices(job: Job) -> tuple[Device, ...]:
        return find_again_or_place(state, options, job)

    run_by_rank_on(state, find_devices, lambda job: make_room(state, options, job), options, strict)


def run_by_rank_on(
    state: State,
    find_devices: FindDevices,
    make_room: MakeRoom,
    sharing: SharingOptions,
    strict: bool = False,
) -> None:
    """Start waiting jobs in order on the devices that the policy itself finds for them, or that it takes from
    running jobs of a later rank."""
    room_made_for: Rank | None = None
    while True:
        room_made_for = _start_until_room_is_made(
            state, find_devices, make_room, sharing, room_made_for, strict
        )
        if room_made_for is None:
            return


def _start_until_room_is_made(
    state: State,
    find_devices: FindDevices,
    make_room: MakeRoom,
    sharing: SharingOptions,
    after: Rank | None,
    strict: bool,
) -> Rank | None:
    """Start jobs in order until one of them needs preemptions; return its rank, or None if none does. The
    preempted jobs, or others, may fit into what is left over, so the caller starts again. Jobs up to
    the rank `after` had their chance to make room already."""
    cluster, queue = state.cluster, state.queue
    for job in queue.candidates():
        if cluster.idle < job.gpus and not is_preemptible_after(state, job):
            start_in_order_on(state, find_devices, sharing, strict)  # nor is there anything for later ranks
            return None
        devices = find_devices(job)
        if devices:
            state.draft.start(job, devices)
            continue
        rank = queue.rank_of(job.id)
        if (after is None or rank > after) and make_room(job):
            return rank
        if strict:
            return None
    return None


def find_again_or_place(state: State, options: PlacementOptions, job: Job) -> tuple[Device, ...]:
    """Return devices for the job; if this plan took some from it that are still free, return those, so
    that it need not move."""
    devices = state.draft.taken_from(job.id)
    if devices and options.are_available(job, devices, state.cluster):
        return devices
    return options.place(job, state.cluster)
