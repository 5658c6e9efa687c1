"""Where a run is, from what `--output` says."""

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from eyas.errors import InputError


@dataclass(frozen=True)
class Place:
    """A run in a storage, and the private folder of whoever works on it on this machine."""

    root: str
    """Storage, as a URI or the absolute path of a folder."""
    run: str
    """Name of the run: the last part of the output."""
    folder: Path | None
    """The run's folder; None in S3."""

    @classmethod
    def of(cls, output: str) -> "Place":
        """Reads `out/demo`, `file:///out/demo` or `s3://bucket/prefix/demo`."""
        parts = urlsplit(output)
        if parts.scheme in ("", "file"):
            folder = Path(unquote(parts.path) if parts.scheme else output).expanduser().resolve()
            if not folder.name:
                raise InputError(f"{output!r} names no run: write --output FOLDER/NAME, such as out/demo")
            return cls(str(folder.parent), folder.name, folder)
        root, _, run = output.rstrip("/").rpartition("/")
        if parts.scheme != "s3" or not parts.netloc or root == "s3:/":
            raise InputError(f"{output!r} is no output: write a folder, or s3://BUCKET/PREFIX/NAME")
        return cls(root, run, None)

    @property
    def output(self) -> str:
        """As the user would write it."""
        return f"{self.root}/{self.run}"

    def private(self) -> Path:
        """The folder, readable by this user only, of sockets and token: the same for every process on this run.

        It is not in the run, which may be in S3, and holds only what is true for readers elsewhere.
        """
        base = Path(tempfile.gettempdir()) / f"eyas-{os.getuid()}"
        base.mkdir(mode=0o700, exist_ok=True)
        found = base.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise InputError(f"{base} is not a private folder of this user: remove it, or set TMPDIR to another place")
        path = base / hashlib.sha256(self.output.encode()).hexdigest()[:16]
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def logs(self) -> Path:
        """The folder of the processes' logs, made if need be. Raises InputError when it can't be written."""
        path = (self.folder or self.private()) / "logs"
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path) as probe:
                probe.write(b"eyas" * 1024)
        except OSError as error:
            raise InputError(
                f"the output {self.output} cannot be written ({error.strerror}): "
                "make room or get the right to write there, or choose another --output"
            ) from error
        return path
