"""Each rule of HTTP/2 that concerns a server, on the native server."""

import socket
from itertools import takewhile

import pytest

from tests import http2
from tests.gate.conversation import Conversation, settings
from tests.gate.rules import RULES, Rule
from tests.gate.server import Running
from tests.gate.service import ECHO, STREAM
from tests.gate.trial import outcome_of
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def address(servers: dict[str, Running]) -> str:
    return servers["native"].plain


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.section} {rule.sent}")
def test_server_does_what_the_rule_says(address: str, rule: Rule) -> None:
    with Conversation(address) as conversation:
        assert outcome_of(rule, conversation) == rule.outcome
        assert not conversation.broken


def test_connection_is_closed_behind_its_goaway(address: str) -> None:
    with http2.Http2Connection(address) as connection:
        connection.send([http2.frame(http2.PING, 0, 1, bytes(8))])
        wait_until(connection.is_closed)


def test_client_without_the_preface_is_closed(address: str) -> None:
    opening = b"INVALID CONNECTION PREFACE\r\n\r\n"
    with http2.Http2Connection(address, opening=opening) as connection:
        wait_until(connection.is_closed)


def test_pings_are_answered_with_their_bytes(address: str) -> None:
    with http2.Http2Connection(address) as connection:
        connection.send([http2.frame(http2.PING, 0, 0, b"01234567")])
        frames = iter(connection.read_frame, None)
        assert next(each.payload for each in frames if each.kind == http2.PING) == b"01234567"


def test_server_sends_no_more_than_the_window(address: str) -> None:
    with Conversation(address, {4: 1}, grant=1) as conversation:
        conversation.send(http2.headers(1, ECHO) + http2.message(1, b"0123456789"))
        conversation.finish({1}, 1)
        assert conversation.answers[1].data[5:] == b"0123456789"
        assert not conversation.broken


def test_windows_below_zero_are_filled_before_the_server_sends(address: str) -> None:
    with http2.Http2Connection(address) as connection:
        # The response of 10,005 bytes is sent; the window is 55,530 then, and -10,005 after that.
        connection.send([http2.headers(1, STREAM) + http2.message(1, bytes(10_000), last=False)])
        frames = iter(connection.read_frame, None)
        next(each for each in frames if each.kind == http2.DATA)
        connection.send([settings({4: 0}), http2.message(1, b"x", last=False)])
        next(each for each in frames if (each.kind, each.flags) == (http2.SETTINGS, http2.ACK))
        connection.send([http2.frame(http2.WINDOW_UPDATE, 0, 1, (10_005).to_bytes(4, "big"))])
        connection.send([http2.frame(http2.PING, 0, 0, bytes(8))])
        assert http2.DATA not in takewhile(
            lambda kind: kind != http2.PING, (each.kind for each in frames)
        )


def test_client_that_closes_its_side_behind_a_request_is_answered(address: str) -> None:
    with http2.Http2Connection(address) as connection:
        connection.send([http2.headers(1, ECHO) + http2.message(1, b"x")])
        connection._socket.shutdown(socket.SHUT_WR)
        assert b"grpc-status" in connection.read()


def test_http_1_on_the_port_is_answered_in_http_1(address: str) -> None:
    opening = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with http2.Http2Connection(address, opening=opening) as connection:
        assert connection.read().startswith(b"HTTP/1.1 400")
