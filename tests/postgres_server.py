"""A PostgreSQL server of one's own, on a socket in a temporary directory: for checks and benchmarks."""

import glob
import os
import pwd
import shutil
import subprocess
import sys
import tempfile

PORT = 5432


class Postgres:
    """fsync on. It refuses to run as root, so it runs as its own user then."""

    def __init__(self):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin")) or [os.path.dirname(shutil.which("initdb") or "")]
        self.programs = found[-1]
        if not os.path.exists(os.path.join(self.programs, "initdb")):
            sys.exit("there is no PostgreSQL server on this machine; install the package postgresql")
        self.directory = tempfile.mkdtemp(prefix="kl-postgres-")
        self.user = None
        if os.geteuid() == 0:
            self.user = "postgres"
            os.chown(self.directory, pwd.getpwnam(self.user).pw_uid, -1)
        self.data = os.path.join(self.directory, "data")
        self.call("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")
        with open(os.path.join(self.data, "postgresql.conf"), "a", encoding="utf-8") as file:
            file.write(f"listen_addresses=''\nunix_socket_directories='{self.directory}'\nport={PORT}\n")
        self.call("pg_ctl", "-w", "-D", self.data, "-l", os.path.join(self.directory, "log"), "start")
        self.url = f"postgres:///postgres?host={self.directory}&port={PORT}&user=postgres"

    def call(self, program, *words):
        done = subprocess.run([os.path.join(self.programs, program), *words], cwd="/", user=self.user,
                              extra_groups=[] if self.user else None, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            sys.exit(f"{done.stdout}\n{program} failed")

    def ask(self, sql):
        done = subprocess.run([*self.psql("-AtX"), "-c", sql, "postgres"], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    def psql(self, flags):
        return [os.path.join(self.programs, "psql"), flags, "-h", self.directory, "-p", str(PORT), "-U", "postgres"]

    def close(self):
        self.call("pg_ctl", "-D", self.data, "-m", "immediate", "stop")
        shutil.rmtree(self.directory)
