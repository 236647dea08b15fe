"""Messages to token ids, without ever tokenising again what was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl.errors import BadInput

Message = dict[str, Any]  # role and content

# For models that bring none.
TEMPLATE = (
    "{% for m in messages %}### {{ m['role'] }}\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant\n{% endif %}"
)
ANSWER = "kwanswer"  # stands for an answer while a template is asked what follows one


class Chat:
    """A tokenizer's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            tokenizer.chat_template = TEMPLATE

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Returns the ids of a conversation up to where the model answers."""
        return self.encode(self._render(messages, True))

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text and no others."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, ids: Sequence[int]) -> str:
        """Returns the text of an answer, without special tokens."""
        return str(
            self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def between(self, ended: bool, messages: Sequence[Message]) -> list[int] | None:
        """Returns the ids between an answer and the next one, with the messages that came; None
        where the template writes what went before in another way then. ``ended``: the answer's last
        id is the end-of-text token.
        """
        before: list[Message] = [{"role": "user", "content": "q"}]
        answered = [*before, {"role": "assistant", "content": ANSWER}]
        asked, done = self._render(before, True), self._render(answered, False)
        whole = self._render([*answered, *messages], True)
        if not done.startswith(asked + ANSWER) or not whole.startswith(done):
            return None
        rest = whole[len(asked + ANSWER) :]
        end = self.tokenizer.eos_token
        if ended and rest.startswith(end):
            rest = rest[len(end) :]
        return self.encode(rest)

    def _render(self, messages: Sequence[Message], answering: bool) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=answering
                )
            )
        except Exception as error:  # a template is a program: it raises what it likes
            roles = ", ".join(str(m.get("role")) for m in messages)
            raise BadInput(
                f"the model's chat template refuses messages of the roles {roles}: {error}",
                "use a base whose template takes them",
            ) from error
