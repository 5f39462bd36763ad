"""The network of `schedulers.learning.network` in torch, as a policy of MaskablePPO.

It scores waiting and running jobs alike. From the scores follow the probabilities of the decisions:

    start k with placement p    sharpness * score(k) + log-probability of p for k
    wait                        sharpness * (the worst score of a running job + margin)
    stop r for the target k     sharpness * (score(k) - score(r) - margin), against 0 for giving up

With infinite sharpness this is the order in which the policy `rl` serves jobs. The value of a state is
estimated by a network of its own, which is not kept; it also sees how much work is to come.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from torch import Tensor, nn

from gpu_flows.schedulers.learning.features import NAMES
from gpu_flows.schedulers.learning.network import Network, make_network

SHARPNESS = 6.0  # before training
POOLED = 32  # width of the value network


class Scorer(nn.Module):
    """The parameters of a `Network` as those of torch."""

    w1: nn.Parameter
    b1: nn.Parameter
    w2: nn.Parameter
    b2: nn.Parameter
    w3: nn.Parameter
    b3: nn.Parameter
    skip: nn.Parameter
    margin: nn.Parameter

    def __init__(self, start: Network) -> None:
        super().__init__()
        for name, array in start._asdict().items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(np.array(array))))

    def forward(self, rows: Tensor) -> Tensor:
        hidden = torch.tanh(torch.tanh(rows @ self.w1 + self.b1) @ self.w2 + self.b2)
        outputs: Tensor = hidden @ self.w3 + self.b3 + rows @ self.skip
        return outputs

    def export(self) -> Network:
        """Return the present parameters."""
        arrays = {name: each.detach().cpu().numpy().copy() for name, each in self.named_parameters()}
        return Network(**arrays)


class ValueNetwork(nn.Module):
    """Estimates the rest of an episode's reward, from means over the jobs and what is to come."""

    def __init__(self, nodes: int, outlook: int) -> None:
        super().__init__()
        self.of_job = nn.Sequential(nn.Linear(len(NAMES), POOLED), nn.Tanh())
        self.of_all = nn.Sequential(
            nn.Linear(2 * POOLED + nodes + outlook + 1, 2 * POOLED), nn.Tanh(), nn.Linear(2 * POOLED, 1)
        )

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        waiting, running = observation["waiting"], observation["running"]
        shown = observation["shown"].unsqueeze(-1)
        count = waiting.shape[1]
        parts = [
            _mean(self.of_job(waiting), shown[:, :count]),
            _mean(self.of_job(running), shown[:, count:]),
            observation["nodes"].mean(dim=1),
            observation["outlook"],
            observation["target"].sum(dim=1, keepdim=True),
        ]
        value: Tensor = self.of_all(torch.cat(parts, dim=1))
        return value


def _mean(rows: Tensor, shown: Tensor) -> Tensor:
    return (rows * shown).sum(dim=1) / shown.sum(dim=1).clamp(min=1)


class ScoringPolicy(MaskableMultiInputActorCriticPolicy):
    """Decides by scores. `placements` is how many placements there are to choose from."""

    def __init__(
        self, *arguments: Any, placements: int, network: Network | None = None, **others: Any
    ) -> None:
        self._placements = placements
        self._start = network or make_network(placements)
        super().__init__(*arguments, **others)

    def _build(self, lr_schedule: Any) -> None:
        spaces = self.observation_space.spaces  # type: ignore[attr-defined]
        self.scorer = Scorer(self._start)
        self.log_sharpness = nn.Parameter(torch.tensor(float(np.log(SHARPNESS))))
        self.critic = ValueNetwork(spaces["nodes"].shape[1], spaces["outlook"].shape[0])
        make_optimizer: Any = self.optimizer_class
        self.optimizer = make_optimizer(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def forward(
        self, obs: Any, deterministic: bool = False, action_masks: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        distribution = self.get_distribution(obs, action_masks)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, self.critic(obs), distribution.log_prob(actions)

    def evaluate_actions(
        self, obs: Any, actions: Tensor, action_masks: Any = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        distribution = self.get_distribution(obs, action_masks)
        return self.critic(obs), distribution.log_prob(actions), distribution.entropy()

    def predict_values(self, obs: Any) -> Tensor:
        value: Tensor = self.critic(obs)
        return value

    def get_distribution(self, obs: Any, action_masks: Any = None) -> MaskableDistribution:
        distribution = self.action_dist.proba_distribution(action_logits=self._logits(obs))
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution

    def _logits(self, obs: dict[str, Tensor]) -> Tensor:
        """Return the logit of each decision, in the order of `learning.decisions`."""
        count = obs["waiting"].shape[1]
        outputs = self.scorer(torch.cat((obs["waiting"], obs["running"]), dim=1))
        scores, sharpness = outputs[..., 0], self.log_sharpness.exp()
        waiting, running = scores[:, :count], scores[:, count:] + self.scorer.margin
        chosen = torch.log_softmax(outputs[:, :count, 1:], dim=-1)
        start = sharpness * waiting.unsqueeze(-1) + chosen
        has_target = obs["target"].sum(dim=1, keepdim=True)
        target = (waiting * obs["target"]).sum(dim=1, keepdim=True)
        stop = sharpness * (target - running)
        hidden = obs["shown"][:, count:] == 0
        worst = running.masked_fill(hidden, 1e3).min(dim=1, keepdim=True).values
        wait = torch.where(has_target > 0, torch.zeros_like(worst), sharpness * worst)
        return torch.cat((start.flatten(1), stop, wait), dim=1)
