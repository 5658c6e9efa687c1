import os
import tempfile
from pathlib import Path

import pytest

from eyas.cli.place import Place
from eyas.errors import InputError


@pytest.fixture(autouse=True)
def _own_tmp(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()


def test_a_folder_is_storage_and_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = Place.of("out/demo/")
    assert (place.root, place.run, place.folder) == (str(tmp_path / "out"), "demo", tmp_path / "out/demo")
    assert Place.of(f"file://{tmp_path}/out/demo") == place


def test_a_bucket_is_storage_and_name():
    place = Place.of("s3://bucket/some/prefix/demo")
    assert (place.root, place.run, place.folder) == ("s3://bucket/some/prefix", "demo", None)
    assert place.output == "s3://bucket/some/prefix/demo"


@pytest.mark.parametrize("output", ["/", "s3://bucket", "s3:///demo", "gs://bucket/demo"])
def test_what_names_no_run_is_refused(output):
    with pytest.raises(InputError, match="output"):
        Place.of(output)


def test_the_private_folder_is_private_and_the_same_for_all(tmp_path):
    first, again = Place.of(f"{tmp_path}/demo").private(), Place.of(f"{tmp_path}/x/../demo").private()
    assert first == again != Place.of(f"{tmp_path}/other").private()
    assert first.stat().st_mode & 0o777 == 0o700
    assert len(f"{first}/dispatcher.sock") < 108 + len(tempfile.gettempdir())


def test_a_folder_that_others_can_enter_is_not_used(tmp_path):
    base = Path(tempfile.gettempdir()) / f"eyas-{os.getuid()}"
    base.mkdir(mode=0o755)
    base.chmod(0o755)
    with pytest.raises(InputError, match="not a private folder"):
        Place.of(f"{tmp_path}/demo").private()


def test_an_output_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        Place.of(f"{tmp_path}/file/demo").logs()
