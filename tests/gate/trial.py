"""Sequences of frames on a server, and what it makes of them."""

import random
import ssl
from typing import Final, NamedTuple

from tests.gate.conversation import FIRST_WINDOW, Conversation
from tests.gate.rules import ANSWERED, CALL, IGNORED, REFUSED, RULES, Rule, moved
from tests.gate.sequences import draw, send
from tests.gate.server import AUTHORITY, Running

_ENCRYPTED_OF: Final = 4
"""Every so many sequences, one is sent on an encrypted connection."""
_WITHIN_S: Final = 10.0


class Seen(NamedTuple):
    """What a client saw on a connection.

    Attributes:
        answers: how the calls ended that it did not reset, and their data.
        broken: what the server must not do; empty if all is well.
    """

    answers: dict[int, tuple[str, bytes]]
    broken: list[str]


class Trial:
    """Sends sequences to a server.

    Args:
        server: the server.
        is_grpcio: whether it is the one to compare with.
    """

    def __init__(self, server: Running, *, is_grpcio: bool = False) -> None:
        self._server = server
        self._is_grpcio = is_grpcio
        self._tls = ssl.create_default_context(cafile=str(AUTHORITY))

    def legal(self, seed: int) -> Seen:
        """Send the legal sequence of a seed."""
        sequence = draw(seed, for_grpcio=self._is_grpcio)
        with self._connect(seed, sequence.settings, sequence.grant) as conversation:
            try:
                send(sequence, conversation)
                conversation.finish(sequence.streams, sequence.settings_sent)
            except TimeoutError:
                conversation.broken.append("no answer")
            if conversation.closed or conversation.goaway:
                conversation.broken.append(f"the end of the connection: {conversation.goaway}")
            answers = conversation.answers
            seen = {each: (answers[each].end, bytes(answers[each].data)) for each in answers}
            return Seen({each: seen[each] for each in sequence.streams}, conversation.broken)

    def illegal(self, seed: int) -> tuple[Rule, str]:
        """Send the first steps of a seed's sequence, and then what one of the rules is about.

        Returns:
            The rule, and the outcome.
        """
        choose = random.Random(seed)
        rule, sequence = choose.choice(RULES), draw(seed, for_grpcio=self._is_grpcio)
        with self._connect(seed, sequence.settings, sequence.grant) as conversation:
            send(sequence, conversation, choose.randint(0, len(sequence.steps)))
            conversation.change_window(FIRST_WINDOW)
            return rule, outcome_of(rule, conversation, sequence.last + 1)

    def _connect(self, seed: int, settings: dict[int, int], grant: int) -> Conversation:
        if seed % _ENCRYPTED_OF:
            return Conversation(self._server.plain, settings, grant=grant)
        return Conversation(self._server.encrypted, settings, self._tls, grant)


def outcome_of(rule: Rule, conversation: Conversation, by: int = 0) -> str:
    """Send the frames of a rule, on streams that are higher by a number; return the outcome.

    Where the connection is to go on, a further call has to be answered.
    """
    stream = rule.stream + by
    conversation.send(moved(rule.frames, by))
    is_answered = rule.outcome != IGNORED and not rule.outcome.startswith("GOAWAY")
    outcome = conversation.outcome(stream, is_answered=is_answered, within_s=_WITHIN_S)
    if conversation.goaway is not None and not conversation.goaway[1]:
        return f"{outcome} without a text"
    if outcome != "closed" and conversation.goaway is None:
        further = call(conversation, _FURTHER)
        if further != ANSWERED:
            return f"{outcome}, and then {further}"
    is_refusal = outcome.startswith(("RST_STREAM 1", "status", "HTTP 4")) and outcome != ANSWERED
    return REFUSED if rule.outcome == REFUSED and is_refusal else outcome


def call(conversation: Conversation, by: int) -> str:
    """Send a call on a stream that is higher by a number; return its outcome."""
    conversation.send(moved(CALL, by))
    return conversation.outcome(by + 1, is_answered=True, within_s=_WITHIN_S)


_FURTHER: Final = 100_000
"""Beyond the streams of all sequences and rules."""
