"""Legal and illegal sequences of frames: clients see the same of both servers.

What a legal client sees differently is in `tests.gate.sequences.UNLIKE_GRPCIO`, and what illegal
frames lead to in `tests.gate.rules.RULES`. `tests/acceptance/test_frames_acceptance.py` sends many
more.
"""

from tests.gate.conversation import Conversation
from tests.gate.rules import ANSWERED
from tests.gate.server import Running
from tests.gate.trial import Trial, call

SEQUENCES = 100


def test_legal_sequences_lead_to_the_same_answers_on_both_servers(
    servers: dict[str, Running],
) -> None:
    native, grpcio = Trial(servers["native"]), Trial(servers["grpcio"], is_grpcio=True)
    for seed in range(SEQUENCES):
        seen = native.legal(seed)
        assert not seen.broken, seed
        assert seen.answers == grpcio.legal(seed).answers, seed


def test_illegal_frames_end_what_they_belong_to_and_disturb_no_other_client(
    servers: dict[str, Running],
) -> None:
    native = Trial(servers["native"])
    with Conversation(servers["native"].plain) as bystander:
        for seed in range(SEQUENCES):
            rule, outcome = native.illegal(seed)
            assert outcome == rule.outcome, (seed, rule.section, rule.sent)
            assert call(bystander, 2 * seed) == ANSWERED
