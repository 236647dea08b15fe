"""A client in Python that is generated of the API's document, at work on a daemon: check.py
generates the package that this imports, and gives the daemon's address.
"""

from __future__ import annotations

import io
import os
import sys
import threading

from kernelwright_client import AuthenticatedClient
from kernelwright_client.api.events import get_events
from kernelwright_client.api.queue import post_queue_pause, post_queue_resume
from kernelwright_client.api.runs import (
    get_runs,
    get_runs_run,
    get_runs_run_rounds,
    post_runs_run_cancel,
    post_runs_run_pause,
    post_runs_run_resume,
    put_runs_run_priority,
)
from kernelwright_client.api.tasks import get_tasks, post_tasks
from kernelwright_client.models import (
    GetRunsStatus,
    PostTasksFilesBody,
    Priority,
    Problem,
    Upload,
)
from kernelwright_client.types import File

SOURCE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 3.5


def get_inputs():
    return [torch.rand(64, 64)]


def get_init_inputs():
    return []
"""


def listen(client: AuthenticatedClient, ready: threading.Event, heard: threading.Event) -> None:
    """Hears events until a run is cancelled."""
    ask = get_events._get_kwargs(kinds=["run", "queue"])
    with client.get_httpx_client().stream(**ask, timeout=600) as answer:
        assert answer.status_code == 200, answer.status_code
        for line in answer.iter_lines():
            if line == "event: ready":
                ready.set()
            if line.startswith("data: ") and '"status":"cancelled"' in line:
                heard.set()
                return


def main(url: str, token: str) -> None:
    client = AuthenticatedClient(base_url=url, token=token, raise_on_unexpected_status=True)
    assert post_queue_pause.sync(client=client).paused
    ready, heard = threading.Event(), threading.Event()
    threading.Thread(target=listen, args=(client, ready, heard), daemon=True).start()
    assert ready.wait(60), "no event"

    sent = post_tasks.sync_detailed(client=client, body=Upload("by_python.py", SOURCE))
    assert sent.status_code == 201 and sent.parsed.run, sent
    file = File(io.BytesIO(SOURCE.encode()), "by_python.py", "text/x-python")
    form = PostTasksFilesBody(file=file)
    again = post_tasks.sync_detailed(client=client, body=form)
    assert again.status_code == 200 and again.parsed.sha256 == sent.parsed.sha256, again
    run = sent.parsed.run

    assert post_runs_run_pause.sync(run, client=client).hold == "paused"
    assert post_runs_run_resume.sync(run, client=client).hold is None
    assert put_runs_run_priority.sync(run, client=client, body=Priority(7)).run.id == run
    refused = put_runs_run_priority.sync_detailed(run, client=client, body=Priority(7000))
    assert refused.status_code == 400 and "priority" in refused.parsed.error, refused
    assert post_runs_run_cancel.sync(run, client=client).run.status == "cancelled"
    assert heard.wait(60), "nothing was heard of run's end"

    page = get_runs.sync(client=client, limit=3)
    assert len(page.items) == 3 and page.next_
    following = get_runs.sync(client=client, limit=3, cursor=page.next_)
    assert following.items[0].id < page.items[2].id
    known = [t.fingerprint for t in get_tasks.sync(client=client).items]
    done = [
        run.id
        for task in known
        for run in get_runs.sync(client=client, task=task, status=GetRunsStatus.DONE).items
    ]
    shown = get_runs_run.sync(done[0], client=client)
    assert shown.task.fingerprint == shown.run.task and shown.run.created
    rounds = get_runs_run_rounds.sync(shown.run.id, client=client)
    assert rounds.items and rounds.items[0].verdict.status
    none = get_runs_run.sync(1 << 40, client=client)
    assert isinstance(none, Problem) and none.error
    assert not post_queue_resume.sync(client=client).paused
    print("the client in Python: it works")


if __name__ == "__main__":
    main(sys.argv[1], os.environ["KERNELWRIGHT_API_TOKEN"])
