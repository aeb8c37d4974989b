"""If the process is killed while it replaces a bundle, either the old or the new bundle is complete."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from mytx.exporter.bundle.integrity import check_files
from mytx.exporter.bundle.manifest import read_manifest
from mytx.exporter.bundle.staging import recover

MOMENTS = 50

# Replaces the bundle over and over: version 1, 2, 3, … each with a few files that all carry the version.
WRITER = """
import sys
from pathlib import Path
from mytx.exporter.bundle.staging import Staging, write_json
from mytx.exporter.bundle.manifest import MANIFEST, Manifest, describe_files
target, version = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
while True:
    version += 1
    with Staging(target, force=True) as staging:
        for name in ("encoder.bin", "decoder.bin", "vocab.json"):
            (staging.path / name).write_text(f"{version} " * 2000)
        files = describe_files(staging.path)
        manifest = Manifest(1, {}, {"kind": "test", "version": version}, files, {}, (), {"passed": True})
        write_json(staging.path / MANIFEST, manifest.to_dict())
        staging.commit()
"""


def version_of(bundle: Path) -> int:
    """The version of the bundle, which must be whole and all of one version."""
    manifest = read_manifest(bundle)
    check_files(bundle, manifest)
    version = manifest.model["version"]
    for entry in manifest.files:
        assert (bundle / entry.path).read_text() == f"{version} " * 2000
    return version


def test_killed_at_random_moments_a_bundle_is_the_old_or_the_new_one(tmp_path):
    bundle = tmp_path / "bundle"
    choose = random.Random(0)
    versions = [0]
    for _ in range(MOMENTS):
        command = [sys.executable, "-c", WRITER, str(bundle), str(versions[-1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(0.005 + choose.random() * 0.05)
            writer.send_signal(signal.SIGKILL)
        recover(bundle)
        if bundle.exists() or versions[-1]:
            versions.append(version_of(bundle))
            assert versions[-1] >= versions[-2]
        assert [path.name for path in tmp_path.iterdir() if path != bundle] == []
    assert versions[-1] > MOMENTS / 2, "the bundle was hardly ever replaced, so nothing was tested"
