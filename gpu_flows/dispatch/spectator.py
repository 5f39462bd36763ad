"""Who looks at every plan of a pool, without a say in it."""

from __future__ import annotations

from gpu_flows.schedulers.model import Action


class Spectator:
    """One that looks away. The methods must return soon: the pool waits for them."""

    def before_plan(self, now: float) -> None:
        """The policy plans next, on the state that the engine has now."""

    def after_plan(self, policy: str, actions: list[Action], now: float, took_us: float) -> None:
        """This policy has decided these actions. They are being carried out, and the engine has the state
        after them."""

    def start_again(self) -> None:
        """One of the other methods has failed, so this spectator may have a wrong idea of the pool."""
