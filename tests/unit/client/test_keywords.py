"""A misspelt keyword of a client's call is refused before the gateway is called."""

from typing import Any

import pytest

import synergai

CLIENT: Any = synergai.Client("127.0.0.1:1")  # the type checker would refuse the calls below


@pytest.mark.parametrize(
    ("call", "arguments", "keyword", "meant"),
    [
        (CLIENT.infer, ("echo", {}), "deadlin", "deadline"),
        (CLIENT.submit, ("echo",), "qoss", "qos"),
        (CLIENT.submit, ("echo",), "input", "inputs"),
    ],
)
async def test_the_error_names_the_call_and_the_keyword_that_may_be_meant(
    call: Any, arguments: tuple[Any, ...], keyword: str, meant: str
) -> None:
    with pytest.raises(TypeError) as error:
        await call(*arguments, **{keyword: 1})
    assert str(error.value) == (
        f"{call.__name__}() has no option {keyword!r}; did you mean {meant}?"
    )


@pytest.mark.parametrize("kind", [synergai.Client, synergai.SyncClient])
def test_misspelt_option_of_a_client_is_refused_with_the_one_that_may_be_meant(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"^a client has no option 'tokn'; did you mean token\?$"):
        kind("127.0.0.1:1", tokn="secret")


async def test_streaming_calls_check_their_keywords_as_well() -> None:
    with pytest.raises(TypeError, match=r"^stream\(\) has no option 'tenant'$"):
        await anext(CLIENT.stream("echo", [], tenant="a"))
    with pytest.raises(TypeError, match=r"^run\(\) has no option 'qoss'; did you mean qos\?$"):
        CLIENT.run("echo", [], qoss=1)
