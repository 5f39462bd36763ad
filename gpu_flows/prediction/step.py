"""The step of a training, as its owner names it for a prediction: `package.module:function`.

The function makes a training and returns one of:

- a function without parameters that does one whole training step:

      def make_step(batch: int = 64, optimizer: str = "AdamW"):
          model = MyModel().cuda()
          optimizer = getattr(torch.optim, optimizer)(model.parameters())

          def step():
              optimizer.zero_grad()
              loss = model(torch.randn(batch, 3, 224, 224, device="cuda")).mean()
              loss.backward()
              optimizer.step()

          return step

- a model and a function that returns the loss of a batch. The model is then moved to the GPU, and the
  optimizer, mixed precision and the backward pass are added as the options `optimizer` and `precision` say:

      def make_step(batch: int = 64):
          model = MyModel()
          images = torch.randn(batch, 3, 224, 224, device="cuda")
          return model, lambda: model(images).mean()

It gets those of the options that it declares as parameters. It may use "cuda" as its device: while a step is
traced, there is one without memory and without arithmetic.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

PRECISIONS = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}


class StepError(Exception):
    """The named step cannot be found, made or traced. The message says why and what to do."""


class StepOptionError(StepError):
    """The name of the step or an option is wrong, whatever the step does."""


class TrainingStep(Protocol):
    """A training whose steps can be traced."""

    def run(self) -> None:
        """Do one step."""

    def find_tensors(self) -> Mapping[str, Iterable[Tensor]]:
        """Return what is there between two steps: weights, gradients and optimizer (its state)."""


def load_step_function(name: str) -> Callable[..., Any]:
    """Import the function that `package.module:function` names. The current folder is searched too."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise StepOptionError(f"{name!r} does not name a step. Write package.module:function.")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise StepError(
            f"{name!r} cannot be imported: {error}. Run the command in the folder of the module, "
            "or set PYTHONPATH."
        ) from error
    found: Any = module
    for part in function_name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise StepError(f"Module {module_name!r} has no function {function_name!r}.")
    return found  # type: ignore[no-any-return]


def make_step(
    function: Callable[..., Any], options: Mapping[str, Any], needed: Iterable[str]
) -> TrainingStep:
    """Call the function with those of the options that it declares. Those that are `needed` must have an
    effect: either the function declares them, or we apply them ourselves."""
    accepted = _choose_options(function, options)
    made = function(**accepted)
    ours = {"optimizer", "precision"}
    match made:
        case (nn.Module() as model, loss) if callable(loss):
            step: TrainingStep = _LossStep(
                model, loss, str(options.get("optimizer") or "AdamW"), str(options.get("precision") or "fp32")
            )
        case _ if callable(made):
            step, ours = _WholeStep(made), set()
        case _:
            raise StepError(
                f"{_name(function)} returned {type(made).__name__}. "
                "Return a function that does one step, or a model and a function that returns its loss."
            )
    if without_effect := [name for name in needed if name not in accepted and name not in ours]:
        raise StepOptionError(
            f"{_name(function)} has no parameter {without_effect[0]!r}, so that option has no effect. "
            "Add the parameter, or leave out the option."
        )
    return step


def _choose_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(options)
    names = {parameter.name for parameter in parameters}
    if missing := [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in options
    ]:
        raise StepOptionError(f"{_name(function)} needs a value for {', '.join(missing)}.")
    return {name: value for name, value in options.items() if name in names}


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', function)}"


class _WholeStep:
    """A function that does a whole step. What it uses is found from where it keeps it."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self._result: Any = None

    def run(self) -> None:
        self._result = self._run()  # a loop keeps its latest result until the next one

    def find_tensors(self) -> Mapping[str, Iterable[Tensor]]:
        owned = list(_find_owned(self._run))
        parameters = [p for model in owned if isinstance(model, nn.Module) for p in model.parameters()]
        buffers = [b for model in owned if isinstance(model, nn.Module) for b in model.buffers()]
        optimizers = [found for found in owned if isinstance(found, torch.optim.Optimizer)]
        return _sort_tensors(parameters, buffers, optimizers)


class _LossStep:
    """A model and its loss, with the optimizer and the precision that the options name."""

    def __init__(self, model: nn.Module, loss: Callable[[], Tensor], optimizer: str, precision: str) -> None:
        if precision not in PRECISIONS:
            raise StepOptionError(
                f"Precision {precision!r} is not known. Choose one of: {', '.join(PRECISIONS)}."
            )
        kind = getattr(torch.optim, optimizer, None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise StepOptionError(
                f"torch.optim has no optimizer {optimizer!r}. Write its name as there, such as AdamW."
            )
        self._model = model.cuda()
        self._loss_function = loss
        make_optimizer: Any = kind
        self._optimizer: torch.optim.Optimizer = make_optimizer(self._model.parameters())
        self._dtype = PRECISIONS[precision]
        self._loss: Tensor | None = None

    def run(self) -> None:
        self._optimizer.zero_grad()
        with self._autocast():
            self._loss = self._loss_function()
        self._loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._dtype == torch.float32 else torch.autocast("cuda", self._dtype)

    def find_tensors(self) -> Mapping[str, Iterable[Tensor]]:
        return _sort_tensors(list(self._model.parameters()), list(self._model.buffers()), [self._optimizer])


def _sort_tensors(
    parameters: list[nn.Parameter], buffers: list[Tensor], optimizers: list[torch.optim.Optimizer]
) -> Mapping[str, Iterable[Tensor]]:
    return {
        "weights": [*parameters, *buffers],
        "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
        "optimizer": [
            value
            for optimizer in optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ],
    }


def _find_owned(value: Any, depth: int = 3) -> Iterator[Any]:
    """Yield models and optimizers that a function can reach: in its closure, its object or their members."""
    if isinstance(value, (nn.Module, torch.optim.Optimizer)):
        yield value
        return
    if not depth or isinstance(value, (Tensor, type)):
        return
    members: list[Any] = []
    if inspect.ismethod(value):
        members.append(value.__self__)
    elif inspect.isfunction(value):
        members += [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
    elif hasattr(value, "__dict__"):
        members += vars(value).values()
    for member in members:
        yield from _find_owned(member, depth - 1)


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a variable that has no value yet
        return False
