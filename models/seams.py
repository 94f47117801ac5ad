"""Where a transformer's tokens are cut and joined: hooks on its modules, around diffusers' own forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

Arguments = dict[str, Any]
Change = Callable[[Arguments], None]
"""Changes a forward's arguments, by name, in place."""


class Seams:
    """What is hooked can be taken off again."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def before(self, module: torch.nn.Module, change: Change) -> None:
        """Lets `change` see the arguments of a module's forward before it runs."""
        names = tuple(inspect.signature(type(module).forward).parameters)[1:]

        def hook(_: torch.nn.Module, args: tuple[Any, ...], kwargs: Arguments) -> tuple[tuple[Any, ...], Arguments]:
            arguments = dict(zip(names, args, strict=False)) | kwargs
            change(arguments)
            return (), arguments

        self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def after(self, module: torch.nn.Module, change: Callable[[Any], Any]) -> None:
        """Replaces what a module's forward returns by what `change` makes of it."""
        self._handles.append(module.register_forward_hook(lambda _module, _args, output: change(output)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
