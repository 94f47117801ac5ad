"""What every command shares with the person in front of it: where text goes, how errors end, the progress bar."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from raydiance.serve.errors import (
    ConfigError,
    InvalidRequest,
    NotFound,
    RaydianceError,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
)

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
USAGE = (ConfigError, InvalidRequest, TooLarge, Unauthorized, UnsupportedMedia)  # the same again ends the same
P = ParamSpec("P")
R = TypeVar("R")

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turns what a command raises into one line on stderr and an exit code. `$RAYDIANCE_DEBUG` keeps tracebacks.

    SIGTERM ends a command like Ctrl-C: what it has begun is cancelled, what it has started is stopped.
    """

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with _sigterm_interrupts():
                return command(*args, **kwargs)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            fail("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except RaydianceError as e:
            if os.environ.get("RAYDIANCE_DEBUG"):
                raise
            fail(f"{e.param}: {e.message}" if e.param and e.param not in e.message else e.message)
            raise typer.Exit(EXIT_USAGE if _is_usage(e) else EXIT_FAILED) from None
        except Exception as e:
            if os.environ.get("RAYDIANCE_DEBUG"):
                raise
            first = next(iter(str(e).strip().splitlines()), "")
            fail(f"unexpected {type(e).__name__}: {first} (set RAYDIANCE_DEBUG=1 for the traceback)")
            raise typer.Exit(EXIT_FAILED) from None

    return wrapper


def _is_usage(error: RaydianceError) -> bool:
    """Whether a wrong option or value was given. A job that is not there may have been removed: that is none."""
    return isinstance(error, USAGE) or (isinstance(error, NotFound) and error.param == "model")


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only there may it be asked for
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def fail(message: str) -> None:
    """One line, whatever libraries have put into it."""
    err.print(f"[bold red]error:[/] {escape(' '.join(message.split()))}")


def say(message: str) -> None:
    """For people, on stderr: stdout is for what a script may read."""
    err.print(f"[dim]{escape(message)}[/]")


def escape(text: str) -> str:
    return text.replace("[", "\\[")


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float, str], None]]:
    """Yields `update(percent, stage)`. Silent where stderr is no terminal."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("[dim]{task.fields[stage]}[/]"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        task = progress.add_task(escape(label), total=100, stage="")
        yield lambda percent, stage: progress.update(task, completed=percent, stage=stage)


def table(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Columns for people on a terminal; tab-separated lines, without headers, for scripts."""
    rows = [list(row) for row in rows]
    if not out.is_terminal:
        for row in rows:
            typer.echo("\t".join(row))
        return
    from rich.table import Table

    drawn = Table(*headers, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        drawn.add_row(*(escape(cell) for cell in row))
    out.print(drawn)
