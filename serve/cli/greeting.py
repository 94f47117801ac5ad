"""What `raydiance serve` prints when it is ready: lines that can be pasted as they are."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from raydiance.models import registry, resolve
from raydiance.models.spec import VIDEO_TASKS

if TYPE_CHECKING:
    from raydiance.serve.local import LocalServer

PROMPT = "a large red circle moves right on a white background"
KEY = "RAYDIANCE_API_KEY"


def greeting(server: LocalServer) -> str:
    """A label and a line each. Keys are named by the variable that holds one, and never shown."""
    url, has_keys = server.url, server.config.needs_keys
    bearer = f' -H "Authorization: Bearer ${KEY}"' if has_keys else ""
    key = f'os.environ["{KEY}"]' if has_keys else '"none"'
    lines = {"docs": f"{url}/docs"}
    if has_keys:
        lines["key"] = f"read -rs {KEY} && export {KEY}"
    if (file := _made(server)) is not None:
        body = f'\'{{"prompt": "{PROMPT}"}}\''
        lines["try"] = f'{command()} generate "{PROMPT}" -o {file} --url {url}'
        lines["or"] = f"curl {url}/v1/jobs{bearer} -H 'Content-Type: application/json' -d {body}"
    lines["openai"] = f'import openai, os; client = openai.OpenAI(base_url="{url}/v1", api_key={key})'
    lines["python"] = f'import raydiance; client = raydiance.connect("{server.address}")'
    lines["stop"] = "Ctrl-C"
    return "".join(f"  {label:<9} {line}\n" for label, line in lines.items())


def command() -> str:
    """This command as a shell finds it: `raydiance` where that is what it would run, else the path that it was run by,
    or that of the script beside this interpreter."""
    script = Path(sys.argv[0])
    if script.name != "raydiance":
        script = Path(sys.executable).with_name("raydiance")
    found = shutil.which("raydiance")
    if found is not None and script.exists() and Path(found).samefile(script):
        return "raydiance"
    return shlex.quote(str(script)) if script.exists() else "raydiance"


def _made(server: LocalServer) -> str | None:
    """A file that the first model makes from text alone, if it does."""
    model = server.config.models[0]
    tasks = registry.card(resolve.resolve(model.path, model.revision), model.id).tasks
    from_text = [task for task in tasks if task.startswith("text-to-")]
    if not from_text:
        return None
    return "clip.mp4" if from_text[0] in VIDEO_TASKS else "picture.png"
