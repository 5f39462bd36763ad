"""Jobs in containers, on any number of Docker hosts.

Each node of the cluster is served by one host. A launch is entered in the store, its container brought
up (`launching`), followed to its end (`follower`), and removed a while after. What is on a host is
learnt from its pulse: a container that carries our labels and that nobody here knows was launched by a
worker before us, and is adopted; one whose attempt has ended is cleared away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from docker.errors import APIError, NotFound

from gpu_flows.blocks.docker import ContainerRules, DockerHost
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Attempt, End, Found, Intent, Launch, LaunchError, NodeAway
from gpu_flows.runtimes.docker import container as words
from gpu_flows.runtimes.docker.checkpoints import Checkpoints, fetch_journal, is_mounted, mount_of
from gpu_flows.runtimes.docker.follower import Follower, nanoseconds
from gpu_flows.runtimes.docker.host import Host, HostAway, archive
from gpu_flows.runtimes.docker.host_health import Beat, Pulse, Served
from gpu_flows.runtimes.docker.launching import Unanswered, bring_up, has_started, insist
from gpu_flows.runtimes.docker.output import Feed, Pump, Sink
from gpu_flows.runtimes.docker.rules import OURS
from gpu_flows.runtimes.entry import INTENT_FILE

log = logging.getLogger(__name__)

FIRST_LOOK_S = 20.0
DRAIN_S = 5.0
SOON_S = 0.3
UNSTARTED_FOR_S = 300.0  # a container that was made and not started for so long never will be


@dataclass(slots=True)
class _Live:
    """An attempt that is being followed."""

    launch: Launch
    served: Served
    feed: Feed
    ended: asyncio.Future[End]
    may_start: bool  # if it turns out that it was not
    follower: Follower | None = None

    @property
    def name(self) -> str:
        return words.name_of(self.launch)


class DockerRuntime:
    """`on_found` hears of attempts that come to light later than `find`, `on_host` of hosts that went down
    (with the reason) or came up (without). Only who `may_act` for the pool adopts and clears away; a job
    that `comes_back` finds its last container still there."""

    def __init__(
        self,
        attempt_store: AttemptStore,
        installation: str,
        sink: Sink,
        on_found: Callable[[Found], None] = lambda found: None,
        on_host: Callable[[str, str], None] = lambda name, trouble: None,
        may_act: Callable[[], bool] = lambda: True,
        comes_back: Callable[[str], bool] = lambda job_id: False,
    ) -> None:
        self._attempt_store, self.installation, self._may_act = attempt_store, installation, may_act
        self._checkpoints = Checkpoints(attempt_store, comes_back)
        self._on_found, self._on_host = on_found, on_host
        self._pump = Pump(sink)
        self._hosts: dict[str, Served] = {}  # by name
        self._leaving: list[Served] = []  # no longer listed, but something still runs there
        self._serves_all = False  # one host for every node, whatever they are called
        self._rules = ContainerRules()
        self._live: dict[str, _Live] = {}
        self._launching: dict[str, Served] = {}  # attempts, and where
        self._troubles: dict[str, str] = {}
        self._adopting = asyncio.Lock()
        self._has_searched = self._was_told = False
        self._errands: set[asyncio.Task[None]] = set()

    # -- hosts --------------------------------------------------------------------------------

    def serve(self, hosts: Iterable[DockerHost], rules: ContainerRules, serves_all: bool) -> None:
        """These hosts from now on. What runs on others is still followed to its end."""
        self._rules, self._serves_all, self._was_told = rules, serves_all, True
        wanted = {host.name: host for host in hosts}
        for name, served in list(self._hosts.items()):
            if wanted.get(name) != served.host.settings:
                self._leaving.append(self._hosts.pop(name))
        for name, settings in wanted.items():
            if name not in self._hosts:
                host = Host(settings)
                self._troubles.pop(name, None)
                self._hosts[name] = Served(host, Pulse(host, self.installation, self._taker(host)))
        self._let_go()

    def _taker(self, host: Host) -> Callable[[Beat], None]:
        """Brings a beat from the pulse's thread into the worker's loop."""
        loop = asyncio.get_running_loop()

        def take(beat: Beat) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closing
                loop.call_soon_threadsafe(self._take, host, beat)

        return take

    def hosts(self) -> list[Host]:
        return [served.host for served in self._hosts.values()]

    def trouble_of(self, node: str) -> str:
        """Why the node's host is down; empty when it is not."""
        served = self._of(node)
        return served.pulse.trouble if served else ""

    def _of(self, node: str) -> Served | None:
        return next(iter(self._hosts.values()), None) if self._serves_all else self._hosts.get(node)

    def _let_go(self) -> None:
        used = [live.served for live in self._live.values()] + list(self._launching.values())
        for served in [each for each in self._leaving if each not in used]:
            self._leaving.remove(served)
            served.close()

    # -- start --------------------------------------------------------------------------------

    async def launch(self, launch: Launch, still_wanted: Callable[[], bool] = lambda: True) -> Attempt:
        served = self._of(launch.node)
        if served is None:
            raise LaunchError(f"no Docker host serves node {launch.node!r}; see the cluster block")
        if not self._serves_all and len({device.node for device in launch.devices}) > 1:
            raise LaunchError("a container runs on one host: leave may_span_nodes off")
        if served.pulse.trouble:
            raise NodeAway(served.pulse.trouble)
        if live := self._live.get(launch.id):
            return _attempt(launch, live.served, time.time())
        if self._attempt_store.has_ended(launch.id):
            raise LaunchError(f"attempt {launch.id} has ended, and is not made again")
        with contextlib.suppress(FileExistsError):
            self._attempt_store.enter(launch)
        feed = Feed(launch, self._attempt_store.folder(launch), quiet=launch.hears_intents)
        self._launching[launch.id] = served
        self._pump.add(launch.id, feed)
        try:
            await served.host.run(partial(self._bring_up, served.host, launch, still_wanted, feed))
        except Unanswered as error:
            log.warning(
                "Whether %s started on %s is not known yet: %s", launch.job.name, served.host.name, error
            )
        except Exception as error:
            if isinstance(error, NodeAway):
                served.pulse.ask_now()
            await self._pump.drain(launch.id, DRAIN_S)
            self._pump.remove(launch.id)
            self._attempt_store.close(launch)  # not struck: its number is used up, whatever may be left of it
            raise
        finally:
            self._launching.pop(launch.id, None)
        started = time.time()
        self._follow(launch, served, feed, may_start=True)
        # Also of a job that is over before the next beat it shall be known how much memory it took.
        asyncio.get_running_loop().call_later(SOON_S, served.pulse.ask_now)
        return _attempt(launch, served, started)

    def _bring_up(self, host: Host, launch: Launch, still_wanted: Callable[[], bool], feed: Feed) -> None:
        say, mounted = partial(_say, feed), mount_of(launch, host)

        def before_start() -> None:
            if launch.checkpoints:
                self._checkpoints.bring(launch, host, self._of, self._rules.lost_after_seconds, say)
            self._attempt_store.note_start(launch)

        ours = [mounted] if mounted else []
        bring_up(host, launch, self.installation, self._rules, still_wanted, before_start, say, ours)

    def _follow(self, launch: Launch, served: Served, feed: Feed, may_start: bool = False) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[End] = loop.create_future()
        self._live[launch.id] = live = _Live(launch, served, feed, ended, may_start)

        def on_end(end: End) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closing
                loop.call_soon_threadsafe(_settle, ended, end)

        live.follower = Follower(served.host, launch, feed, on_end, lambda: live.may_start)

    # -- end ----------------------------------------------------------------------------------

    async def wait(self, attempt: Attempt) -> End:
        live = self._live.get(attempt.launch.id)
        if live is None:
            return End(detail="Its container is gone, and nobody saw how it ended.", lost=True)
        end = await self._end_or_loss(live)
        if vitals := live.served.pulse.vitals.get(live.name):
            end = replace(end, peak_memory_mb=vitals.peak_memory_mb)
        if live.feed.quiet and (end.exit_code or end.lost):
            live.feed.reveal()
        host = live.served.host
        if live.launch.checkpoints and not end.lost and not is_mounted(live.launch, host):
            with contextlib.suppress(HostAway, APIError):
                await host.call(lambda _: fetch_journal(host, live.launch))
        await self._pump.drain(live.launch.id, DRAIN_S)
        return end

    async def _end_or_loss(self, live: _Live) -> End:
        """Its end; or, when its host has been silent for too long, that it is lost."""
        pulse = live.served.pulse
        while not live.ended.done():
            await asyncio.wait({live.ended}, timeout=1.0)
            silent = pulse.silent_s()
            if not live.ended.done() and silent > self._rules.lost_after_seconds:
                detail = f"{pulse.trouble} (for {silent:.0f} s). What became of the job is not known."
                return End(detail=detail, lost=True)
        return live.ended.result()

    async def stop(self, attempt: Attempt, intent: Intent) -> None:
        launch = attempt.launch
        live = self._live.get(launch.id)
        if live is None:
            return
        name, host = live.name, live.served.host
        live.may_start = False
        asked_ago = self._attempt_store.note_stop(launch, intent)
        if asked_ago is None:
            tar = archive({INTENT_FILE: intent.encode()})
            heard = "SIGUSR1" if launch.hears_intents else "SIGTERM"

            def ask() -> None:
                """Twice is better than not at all: then it would be killed without having saved."""
                if launch.hears_intents:
                    insist(lambda: host.ask(lambda api: api.put_archive(name, OURS, tar)))
                insist(lambda: host.ask(lambda api: api.kill(name, heard)))

            with contextlib.suppress(HostAway, APIError):
                await host.call(lambda _: ask())
        await asyncio.wait({live.ended}, timeout=max(0.0, launch.grace_s - (asked_ago or 0.0)))
        while not live.ended.done() and launch.id in self._live:
            with contextlib.suppress(HostAway, APIError):
                await host.call(lambda api: api.kill(name, "SIGKILL"))
            await asyncio.wait({live.ended}, timeout=2.0)

    def forget(self, launch: Launch) -> None:
        live = self._live.pop(launch.id, None)
        if live and live.follower:
            live.follower.close()
        unwatched = live and live.served in self._leaving and launch.node not in self._hosts
        if live and unwatched and not self._checkpoints.are_needed_of(launch):
            self._see_to(self._remove(live.served.host, live.name))
        self._pump.remove(launch.id)
        self._attempt_store.close(launch)
        self._let_go()

    # -- afterwards ---------------------------------------------------------------------------

    async def find(self) -> list[Found]:
        """What the store says and what the hosts show. A host that does not answer is believed to run what
        the store says it runs, until it is back or has been silent for too long."""
        if not self._was_told:  # a cluster block that makes no sense: what runs is found when it is mended
            self._has_searched = True
            return []
        pulses = [served.pulse for served in self._hosts.values()]
        await asyncio.gather(*(asyncio.to_thread(pulse.first.wait, FIRST_LOOK_S) for pulse in pulses))
        found = []
        async with self._adopting:
            for _, entered in self._attempt_store.open_attempts():
                if entered.container is not None and self._is_news(entered):
                    found.append(await self._look_for(entered))
            for served in [each for each in self._hosts.values() if not each.pulse.trouble]:
                with contextlib.suppress(HostAway, APIError):
                    for seen in await served.host.call(served.pulse.ours):
                        carried = words.launch_seen(seen)
                        if carried and self._is_news(carried) and seen["State"] != "created":
                            found.append(await self._adopt(carried, served))
        self._has_searched = True
        return found

    async def _look_for(self, launch: Launch) -> Found:
        """What became of an attempt that an earlier worker entered in the store."""
        gone = Found(launch, Attempt(launch, "", time.time()), alive=False)
        never = Found(launch, None, alive=False)
        served = self._of(launch.node)
        if served is None:
            return gone  # its host is no longer listed
        try:
            seen = await self._inspect(served, launch)
            ours = words.is_of(launch, self.installation, seen["Config"].get("Labels") or {})
            if ours and not has_started(seen):  # its worker died in between
                await self._remove(served.host, seen["Id"])
                return never
        except NotFound:
            ours = False
        except (HostAway, APIError):
            ours = True
        if not ours:
            return gone if self._attempt_store.has_started(launch.id) else never
        return await self._adopt(launch, served)

    async def _inspect(self, served: Served, launch: Launch) -> dict[str, Any]:
        if served.pulse.trouble:
            raise HostAway(served.pulse.trouble)  # not to wait for it again
        return dict(await served.host.call(lambda api: api.inspect_container(words.name_of(launch))))

    def _is_news(self, launch: Launch) -> bool:
        known = launch.id in self._live or launch.id in self._launching
        return not known and not self._attempt_store.has_ended(launch.id)

    async def _adopt(self, launch: Launch, served: Served) -> Found:
        """Follow what an earlier worker launched; its end comes the same way as any other."""
        self._launching[launch.id] = served
        with contextlib.suppress(FileExistsError, LaunchError):
            self._attempt_store.enter(launch)
        feed = Feed(launch, self._attempt_store.folder(launch), quiet=launch.hears_intents, adopted=True)
        started, alive = time.time(), True
        with contextlib.suppress(HostAway, APIError):
            seen = await self._inspect(served, launch)
            alive = bool(seen["State"]["Running"])
            started = nanoseconds(seen["State"]["StartedAt"]) / 1e9 or started
        self._pump.add(launch.id, feed)
        self._follow(launch, served, feed)
        self._launching.pop(launch.id, None)
        return Found(launch, _attempt(launch, served, started), alive)

    def _take(self, host: Host, beat: Beat) -> None:
        """A look at a host, in the worker's loop."""
        served = next((each for each in self._hosts.values() if each.host is host), None)
        if served is None:
            return
        if not beat.trouble and self._has_searched and self._may_act():
            for seen in beat.containers:
                if launch := words.launch_seen(seen):
                    self._see_to_it(launch, served, seen)
        if self._troubles.get(host.name, "not asked yet") != beat.trouble:
            self._troubles[host.name] = beat.trouble
            self._on_host(host.name, beat.trouble)

    def _see_to_it(self, launch: Launch, served: Served, seen: dict[str, Any]) -> None:
        """A container of ours: one that came to light is told of, one that has had its day is removed."""
        remove = partial(self._remove, served.host, seen["Id"])
        if self._is_news(launch):
            if seen["State"] != "created":
                self._see_to(self._tell_of(launch, served))
            elif time.time() - seen["Created"] > UNSTARTED_FOR_S:
                self._see_to(remove())
        elif launch.id not in self._live and launch.id not in self._launching:
            # Its end has been noted. If it still runs it was judged lost, and its devices are others' now.
            with contextlib.suppress(OSError):
                ended = (self._attempt_store.ended / launch.id).stat().st_ctime  # when it was moved there
                old = time.time() - ended > self._rules.keep_seconds and not self._checkpoints.are_needed_of(
                    launch
                )
                if seen["State"] == "running" or old:
                    self._see_to(remove())

    async def _tell_of(self, launch: Launch, served: Served) -> None:
        async with self._adopting:
            found = await self._adopt(launch, served) if self._is_news(launch) else None
        if found:
            self._on_found(found)

    async def _remove(self, host: Host, container: str) -> None:
        with contextlib.suppress(HostAway, APIError):
            await host.call(lambda api: api.remove_container(container, force=True, v=True))

    def _see_to(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # -- looking ------------------------------------------------------------------------------

    def activity(self) -> dict[str, float]:
        """Called in the sampler's thread."""
        busy = {}
        for live in list(self._live.values()):
            if vitals := live.served.pulse.vitals.get(live.name):
                busy[live.launch.job.id] = vitals.activity
        return busy

    async def kill_all(self) -> None:
        """Stop everything at once, without grace."""

        async def kill(live: _Live) -> None:
            with contextlib.suppress(HostAway, APIError):
                await live.served.host.call(lambda api: api.remove_container(live.name, force=True, v=True))

        await asyncio.gather(*(kill(live) for live in self._live.values()))

    async def close(self) -> None:
        """Let go of everything. What runs goes on running; the next worker adopts it."""
        for live in self._live.values():
            if live.follower:
                live.follower.close()
        for task in self._errands:
            task.cancel()
        await self._pump.close()
        for served in [*self._hosts.values(), *self._leaving]:
            served.close()
        self._hosts, self._leaving = {}, []


def _attempt(launch: Launch, served: Served, started: float) -> Attempt:
    where = f"{socket.gethostname()}:{served.host.name}/{words.name_of(launch)}"
    return Attempt(launch, where, started)


def _say(feed: Feed, text: str) -> None:
    feed.say(text, time.time_ns() // 1000)


def _settle(ended: asyncio.Future[End], end: End) -> None:
    if not ended.done():
        ended.set_result(end)
