import asyncio
import os
import signal

import pytest

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
