"""`raydiance jobs`: the jobs of a server."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from raydiance.serve.cli.console import EXIT_FAILED, fail, guarded, out, progress_bar, say, table
from raydiance.serve.cli.remote import Remote, find_url

app = typer.Typer(help="Look after the jobs of a server.", no_args_is_help=True)

Url = Annotated[
    str | None, typer.Option(help="The server.", envvar="RAYDIANCE_URL", show_default="http://127.0.0.1:8000")
]
JobId = Annotated[str, typer.Argument(help="The job's id, as `raydiance jobs list` shows it.")]


@app.command("list")
@guarded
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many, newest first.")] = 20,
    after: Annotated[str | None, typer.Option(help="Go on after this job.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    url: Url = None,
) -> None:
    """List jobs, newest first."""
    page = Remote(find_url(url)).jobs(limit, after)
    if as_json:
        out.print_json(data=page)
        return
    table(("job", "status", "", "task", "made", "prompt"), map(_row, page["data"]))
    if page.get("has_more"):
        say(f"there are more: --after {page['data'][-1]['id']}")


@app.command("show")
@guarded
def show(job_id: JobId, url: Url = None) -> None:
    """Print one job as JSON."""
    out.print_json(data=Remote(find_url(url)).job(job_id))


@app.command("why")
@guarded
def why(
    job_id: JobId,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    url: Url = None,
) -> None:
    """Tell where a job is, what it waits for, and what the scheduler decided of it."""
    told = Remote(find_url(url)).why(job_id)
    if as_json:
        out.print_json(data=told)
        return
    lines = [f"{job_id} is {told['status']}: {told['where']}"]
    if told["waits"]:
        lines.append(told["waits"])
    lines.append(f"it {'has waited' if told['status'] == 'queued' else 'waited'} {told['waited_s']:.1f} s for its turn")
    out.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    if told["decisions"]:
        table(("times", "what was decided at its steps"), ((str(d["count"]), d["meaning"]) for d in told["decisions"]))


@app.command("cancel")
@guarded
def cancel(job_id: JobId, url: Url = None) -> None:
    """Stop a job within one step. A finished one stays as it is."""
    job = Remote(find_url(url)).cancel(job_id)
    say(f"{job_id} is {job['status']}")


@app.command("delete")
@guarded
def delete(job_id: JobId, url: Url = None) -> None:
    """Stop a job if it runs, and remove it and its files."""
    Remote(find_url(url)).delete(job_id)
    say(f"{job_id} is deleted")


@app.command("watch")
@guarded
def watch(job_id: JobId, url: Url = None) -> None:
    """Follow a job to its end; exits with 1 if it did not complete. Ctrl-C stops watching, not the job."""
    job = follow(Remote(find_url(url)), job_id, job_id)
    if job["status"] != "completed":
        fail(ending(job))
        raise typer.Exit(EXIT_FAILED)
    say(f"{job_id} is completed")


def follow(remote: Remote, job_id: str, label: str) -> dict[str, Any]:
    """Shows progress to the end; returns the ended job."""
    with progress_bar(label) as update:
        update(0, "waiting")
        for event in remote.events(job_id):
            if event.type == "progress":
                update(float(event.data.get("progress", 0)), str(event.data.get("stage", "")))
            elif event.type in ("queued", "started"):
                update(float(event.data.get("progress", 0)), event.type)
            elif event.type == "completed":
                update(100, "done")
    return remote.job(job_id)


def ending(job: dict[str, Any]) -> str:
    reason = (job.get("error") or {}).get("message")
    return f"job {job['id']} is {job['status']}" + (f": {reason}" if reason else "")


def _row(job: dict[str, Any]) -> list[str]:
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job["created_at"]))
    prompt = str(job["parameters"]["prompt"])
    short = prompt if len(prompt) <= 60 else prompt[:59] + "…"
    return [job["id"], job["status"], f"{job['progress']}%", job["task"], made, short]
