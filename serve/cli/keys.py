"""`raydiance keys`: tenants, their API keys and limits, in the database that a server keeps its jobs in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydiance.serve.cli.console import guarded, out, say, table
from raydiance.serve.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from raydiance.serve.storage.keys import Keys, Tenant

HELP = """API keys of a server, and the limits of the tenants that they belong to.

Works on the server's database, also while it runs: without --database and --config on that of `raydiance serve` in
this folder. A server asks for keys with `auth.mode=keys`, and whenever it listens beyond loopback. A change of limits
acts at once, a revoked key is let in for 5 more seconds at most.

[bold]Examples[/]

  raydiance keys create --tenant acme --concurrency 4 --gpu-seconds-per-minute 120

  RAYDIANCE_API_KEY=rd-… raydiance generate "a red circle" --url https://video.example.com

  raydiance keys tenant acme --monthly-budget 5000 --unlimited concurrency

  raydiance keys list

  raydiance keys revoke key_0f3a9c5e1b2d4a68
"""
app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="rich")

Database = Annotated[
    str | None, typer.Option(help="sqlite:///FILE or postgresql://…", show_default="that of the configuration")
]
Config = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file of options, as the server has it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Everything, as JSON.")]
Concurrency = Annotated[int | None, typer.Option(help="Samples that are queued or in progress at once.")]
PerMinute = Annotated[float | None, typer.Option(help="GPU-seconds within any 60 seconds.")]
PerDay = Annotated[float | None, typer.Option(help="GPU-seconds from midnight to midnight, UTC.")]
Budget = Annotated[float | None, typer.Option(help="Cost of a month: GPU-seconds times auth.gpu_second_price.")]
Models = Annotated[list[str] | None, typer.Option("--model", help="A model it may use. May be repeated.")]
Tiers = Annotated[list[str] | None, typer.Option("--tier", help="A service tier it may use. May be repeated.")]
Weight = Annotated[float | None, typer.Option(help="Its share beside others' when all is busy.", show_default="1")]
LIMITS = {  # option -> limit
    "concurrency": "concurrency",
    "gpu-seconds-per-minute": "gpu_seconds_per_minute",
    "gpu-seconds-per-day": "gpu_seconds_per_day",
    "monthly-budget": "monthly_budget",
    "model": "allowed_models",
    "tier": "allowed_tiers",
}


@app.command("create")
@guarded
def create(
    tenant: Annotated[str, typer.Option(help="Whose key; made if it is new.")],
    label: Annotated[str, typer.Option(help="What the key is for, for you to know it by.")] = "",
    concurrency: Concurrency = None,
    gpu_seconds_per_minute: PerMinute = None,
    gpu_seconds_per_day: PerDay = None,
    monthly_budget: Budget = None,
    model: Models = None,
    tier: Tiers = None,
    weight: Weight = None,
    database: Database = None,
    config: Config = None,
) -> None:
    """Make a key and print it, this once. Limits are the tenant's, over all its keys; what is left out stays."""
    limits = _given(
        concurrency=concurrency,
        gpu_seconds_per_minute=gpu_seconds_per_minute,
        gpu_seconds_per_day=gpu_seconds_per_day,
        monthly_budget=monthly_budget,
        allowed_models=model,
        allowed_tiers=tier,
        weight=weight,
    )
    with _store(database, config, is_new=True) as store:
        of = store.set_tenant(tenant, **limits)
        key, secret = store.create_key(of.name, label)
    say(f"{key.id} of tenant {of.name} ({_limits(of) or 'no limits'}); the key is not shown again:")
    typer.echo(secret)


@app.command("list")
@guarded
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Of this tenant alone.")] = None,
    as_json: AsJson = False,
    database: Database = None,
    config: Config = None,
) -> None:
    """List keys, oldest first: by their ids and last characters."""
    from dataclasses import asdict

    with _store(database, config) as store:
        keys = store.keys(tenant)
    if as_json:
        out.print_json(data=[asdict(key) for key in keys])
        return
    rows = [
        [key.id, key.tenant, f"rd-…{key.last4}", _when(key.created_at), _when(key.revoked_at), key.label]
        for key in keys
    ]
    table(("key", "tenant", "", "made", "revoked", "label"), rows)


@app.command("revoke")
@guarded
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `raydiance keys list` shows it.")],
    database: Database = None,
    config: Config = None,
) -> None:
    """Let a key in no longer. Jobs that it has started go on."""
    with _store(database, config) as store:
        key = store.revoke_key(key_id)
    say(f"{key.id} of tenant {key.tenant} is revoked; running servers notice within 5 seconds")


@app.command("tenant")
@guarded
def tenant(
    name: Annotated[str | None, typer.Argument(help="Left out: all of them.", show_default=False)] = None,
    concurrency: Concurrency = None,
    gpu_seconds_per_minute: PerMinute = None,
    gpu_seconds_per_day: PerDay = None,
    monthly_budget: Budget = None,
    model: Models = None,
    tier: Tiers = None,
    weight: Weight = None,
    unlimited: Annotated[
        list[str] | None, typer.Option(metavar="LIMIT", help=f"Lift one of {', '.join(LIMITS)}. May be repeated.")
    ] = None,
    as_json: AsJson = False,
    database: Database = None,
    config: Config = None,
) -> None:
    """Show tenants and their limits, or make one or change its limits. The keys of http.api_key_sha256 are those of the
    tenant `default`."""
    limits = _given(
        concurrency=concurrency,
        gpu_seconds_per_minute=gpu_seconds_per_minute,
        gpu_seconds_per_day=gpu_seconds_per_day,
        monthly_budget=monthly_budget,
        allowed_models=model,
        allowed_tiers=tier,
        weight=weight,
    )
    for lifted in unlimited or []:
        if lifted not in LIMITS:
            raise InvalidRequest(f"--unlimited {lifted} is none of {', '.join(LIMITS)}")
        if LIMITS[lifted] in limits:
            raise InvalidRequest(f"--unlimited {lifted} and --{lifted} contradict each other")
        limits[LIMITS[lifted]] = None
    if limits and name is None:
        raise InvalidRequest("name the tenant whose limits are to be changed")
    with _store(database, config, is_new=bool(limits)) as store:
        if name is None:
            tenants = store.tenants()
        else:
            tenants = [store.set_tenant(name, **limits) if limits else store.tenant(name)]
    if as_json:
        from dataclasses import asdict

        out.print_json(data=[asdict(each) for each in tenants])
        return
    table(("tenant", "made", "weight", "limits"), [_row(each) for each in tenants])


def _given(**limits: Any) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in limits.items() if v is not None and v != []}


@contextmanager
def _store(database: str | None, config: Path | None, *, is_new: bool = False) -> Iterator[Keys]:
    """Args:
    is_new: whether an SQLite file may be made; otherwise a mistyped name would look like a server without keys.
    """
    from raydiance.serve.cli.server import local_config
    from raydiance.serve.storage.database import without_password
    from raydiance.serve.storage.keys import Keys

    if database is not None and config is not None:
        raise ConfigError("give --database or --config, not both")
    values = {} if database is None else {"storage.database": database}
    url = local_config(config, values).storage.database
    if url.startswith("sqlite:///") and not is_new and not Path(url.removeprefix("sqlite:///")).exists():
        raise ConfigError(f"there is no {without_password(url)}: give the server's --database or --config")
    store = Keys(url)
    try:
        yield store
    finally:
        store.close()


def _row(tenant: Tenant) -> list[str]:
    return [tenant.name, _when(tenant.created_at), f"{tenant.limits.weight:g}", _limits(tenant)]


def _limits(tenant: Tenant) -> str:
    values = {option: getattr(tenant.limits, name) for option, name in LIMITS.items()}
    return ", ".join(
        f"{option}={'|'.join(v) if isinstance(v, tuple) else f'{v:g}'}" for option, v in values.items() if v is not None
    )


def _when(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
