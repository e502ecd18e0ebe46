"""An S3 server of one's own (tools/radosgw), with a bucket: for checks."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
KEYS = {"AWS_ACCESS_KEY_ID": "keyline", "AWS_SECRET_ACCESS_KEY": "keyline-test-secret"}


class S3:
    """`url` names a place in the bucket, `keys` are the environment that opens it."""

    def __init__(self):
        self.directory, self.keys = tempfile.mkdtemp(prefix="kl-s3-"), KEYS
        with self.script("start", {"RADOSGW_FOR": str(os.getpid())}) as started:
            self.endpoint = started.stdout.readline().strip()  # its end comes when the server's does
        if not self.endpoint.startswith("http://"):
            sys.exit("radosgw does not start; install ceph-mon ceph-osd radosgw ceph-common")
        made = subprocess.run(["curl", "-sf", "-X", "PUT", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user",
                               ":".join(KEYS.values()), "-H", "x-amz-content-sha256: " + hashlib.sha256().hexdigest(),
                               self.endpoint + "/keyline-check"], check=False)
        if made.returncode:
            sys.exit("no bucket could be made")
        self.url = f"s3://keyline-check/servers?endpoint={self.endpoint}"

    def script(self, verb, more=None):
        words = [os.path.join(ROOT, "tools/radosgw"), verb, self.directory]
        return subprocess.Popen(words, env={**os.environ, **(more or {})}, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, text=True)

    def close(self):
        self.script("stop").wait()
        shutil.rmtree(self.directory, ignore_errors=True)
