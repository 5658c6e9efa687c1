import asyncio
import os
import signal

import pytest
from pydantic_settings import BaseSettings, SettingsConfigDict

from eyas.errors import InputError
from eyas.telemetry import process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_set_the_event(number):
    event = process.stop_event()
    assert not event.is_set()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(event.wait(), 5)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


def test_an_error_of_eyas_is_its_sentence_and_status_one(capsys):
    async def main():
        raise InputError("no model is given")

    with pytest.raises(SystemExit) as exit_info:
        process.run(main())
    assert exit_info.value.code == 1
    assert capsys.readouterr().err == "error: no model is given\n"


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="EYAS_", frozen=True)
    model: str
    workers: int = 1


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("EYAS_MODEL", "folder")
    assert process.settings(_Settings).model == "folder"


def test_settings_that_cannot_be_used_are_one_sentence(monkeypatch, capsys):
    monkeypatch.delenv("EYAS_MODEL", raising=False)
    monkeypatch.setenv("EYAS_WORKERS", "many")
    with pytest.raises(SystemExit):
        process.settings(_Settings)
    sentence = capsys.readouterr().err
    assert "EYAS_MODEL: Field required" in sentence
    assert "EYAS_WORKERS" in sentence
    assert sentence.count("\n") == 1
