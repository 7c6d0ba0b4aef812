"""Step doctor: versions and devices; fails if no device can be used."""

import json
import shutil
import subprocess
import sys

from target import Target


def output(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[0]}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    target = Target.of_step()
    version = output(target.spillway, "--version")
    print(version)
    report = json.loads(output(target.spillway, "doctor", "--json", "--nvme-path", target.out))
    if shutil.which("nvidia-smi"):
        print(subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False).stdout)
    print(json.dumps(report))
    if report["no_cuda"] or not report["devices"]:
        sys.exit(f"no device: {report['no_cuda']}")
    for device in report["devices"]:
        if device["error"]:
            sys.exit(f"device {device['index']}: {device['error']}")


main()
