"""A real PostgreSQL of the test run's own: in a folder of its own, by a unix socket, ended with the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

PROGRAMS = Path("/usr/lib/postgresql/15/bin")


class Postgres:
    """A server that can be stopped and started again."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpuslice-pg-"))
        self._numbers = 0
        if os.getuid() == 0:  # it refuses to run as root
            owner = pwd.getpwnam("postgres")
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "--pgdata", self._data, "--auth=trust", "--username=gpuslice", "--no-sync", "--locale=C")
        self.start()

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off -c max_connections=50"
        log = str(self.folder / "log")
        self._run("pg_ctl", "start", "--wait", "--pgdata", self._data, "--log", log, "--options", options)

    def stop(self) -> None:
        """As when it crashes."""
        self._run("pg_ctl", "stop", "--wait", "--pgdata", self._data, "--mode=immediate")

    def new_database(self) -> str:
        """Its address."""
        self._numbers += 1
        name = f"ledger{self._numbers}"
        self.run("createdb", name)
        return f"postgresql://gpuslice@/{name}?host={self.folder}"

    def run(self, program: str, *arguments: str, standard_input: str | None = None) -> str:
        """One of PostgreSQL's own programs, as people use them."""
        return self._run(program, "--host", str(self.folder), "--username=gpuslice", *arguments, given=standard_input)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def _run(self, program: str, *arguments: str, given: str | None = None) -> str:
        who = "postgres" if os.getuid() == 0 else None
        # Output to a file: the server inherits it, and a pipe would never end.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [PROGRAMS / program, *arguments], user=who, group=who, extra_groups=[] if who else None,
                check=False, stdout=output, stderr=subprocess.STDOUT, text=True, cwd="/",
                input=given, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            )  # fmt: skip
            output.seek(0)
            text = output.read()
        assert done.returncode == 0, f"{program} {' '.join(arguments)}: {text}"
        return text
