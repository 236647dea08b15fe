"""Several turns with tools, whose history is replaced on the way, are trained on as they were
sampled. The server is a double here; the real one, with real verdicts, is
trainer/episodes's TestAReactEpisodeIsTrainedOn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from doubles import serving
from react import train

REFERENCE = "class Model: pass"


def act(tool: str, **arguments: str) -> str:
    return "```tool\n" + json.dumps({"tool": tool, "arguments": arguments}) + "\n```"


class React:
    """The episode API of ``react``: a message follows each call of a tool, and what has become
    longer than ``most`` characters is replaced by a summary and the last turn. The reward is what
    the file that was written last says.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.talks: dict[str, list[dict[str, Any]]] = {}
        self.files: dict[str, str] = {}

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/episodes":
            assert (body["strategy"], body["tools"]) == ("react", "text")
            name = f"e{len(self.talks) + 1}"
            self.talks[name] = [
                {"role": "system", "content": "You work with tools."},
                {"role": "user", "content": f"The task:\n{body['reference']}"},
            ]
            return 201, {"id": name, "messages": self.talks[name]}
        name = path.split("/")[3]
        talk = self.talks[name]
        call = json.loads(body["text"].removeprefix("```tool\n").removesuffix("\n```"))
        if call["tool"] == "write":
            self.files[name] = call["arguments"]["content"]
        if call["tool"] == "finish":
            reward = 1 if "right" in self.files[name] else -1
            status = "correct" if reward > 0 else "wrong"
            return 200, {"done": True, "reward": reward, "verdict": {"status": status}}
        said = {"role": "user", "content": f"{call['tool']}: done, {len(body['text'])} characters"}
        talk += [{"role": "assistant", "content": body["text"]}, said]
        if sum(len(m["content"]) for m in talk) > self.most:
            talk[1:-2] = [{"role": "user", "content": "What was said before is left out."}]
            return 200, {"context": "replace", "messages": talk}
        return 200, {"context": "append", "messages": [said]}


def test_what_replaced_history_is_trained_on(tmp_path: Path) -> None:
    scripts = [
        [
            act("write", path="model_new.py", content=f"wrong {'abcdefgh' * 20}"),
            act("verify"),
            act("write", path="model_new.py", content=f"{word} {'abcdefgh' * 20}"),
            act("compile"),
            act("verify"),
            act("finish", reason="enough"),
        ]
        for word in ("right", "wrong")
    ]
    with serving(React(700)) as url:
        found = train(tmp_path, url, REFERENCE, scripts, {})["episodes"]
    assert [e["reward"] for e in found] == [1.0, -1.0]
    kinds = "".join(c[0] for c in found[0]["contexts"])
    assert kinds.startswith("raa") and "ra" in kinds[1:]
