"""Words of the command line that programs write are checked like those of people."""

import pytest

from ddpsched.arguments import object_given
from ddpsched.errors import ConfigError


def test_an_object_among_words() -> None:
    assert object_given(["a.toml", '--launch={"how": "apart"}'], "--launch") == {"how": "apart"}
    assert object_given(["a.toml", "launch=1"], "--launch") is None


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "1" * 5000, ""])
def test_what_is_no_object(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--launch=.*leave it out") as caught:
        object_given([f"--launch={text}"], "--launch")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("words", [["--launch={"], ["--block", "1" * 5000], ["--block", "x"]])
def test_commands_end_with_one_message(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from experiments import interleaved, train

    for main in (interleaved.main, train.main):
        if "--block" in words and main is train.main:
            continue
        assert main(["experiments/demo.toml", *words]) == 1
        printed = capsys.readouterr().err
        assert printed.startswith("error: ")
        assert len(printed.splitlines()) == 1
