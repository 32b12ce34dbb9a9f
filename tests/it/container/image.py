"""Runs the steps of packaging/Containerfile in a folder with Debian, without a container engine. Needs root.

image.py fetched FOLDER    succeeds if FOLDER has the base system and the packages of the steps
image.py fetch FOLDER      fetches them
image.py run FOLDER SKEIN  runs the steps with this program, starts the image and prints what was found, as JSON

`run` needs no network. Start it with `unshare --net --mount --pid --fork --kill-child --mount-proc`, so that the port
of the image is free and nothing of the image remains. Standard library only.
"""

import argparse
import fcntl
import hashlib
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PUBLIC_NAME = "skein.example.com"
# The arguments after the entry point, as docs/serve.md gives them to `podman run`.
ARGUMENTS = ["--public-url", f"https://{PUBLIC_NAME}"]
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# As in the small images of Debian: dpkg leaves out these files, and does not wait for the disk.
LEFT_OUT = ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"]
DPKG = "\n".join(["force-unsafe-io", *(f"path-exclude {path}" for path in LEFT_OUT), ""])
# The folder becomes the root of the process, as in an engine. After `chroot` alone, user namespaces would be forbidden.
ENTER = """
mount --bind "$0" "$0" && cd "$0" && mount -t proc proc proc && mount --rbind /dev dev && mkdir -p .before &&
pivot_root . .before && umount -l .before && rmdir .before && exec chroot . "$@"
"""
# The file that says what a folder has.
MARK = "fetched.json"
PATIENCE = 30


class StepError(Exception):
    """A step of the Containerfile that fails, or that this program cannot run."""


def instructions(path):
    """The instructions of a Containerfile, as pairs of their name and the rest."""
    text = re.sub(r"(?m)^\s*#.*\n", "", Path(path).read_text())
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def suite(steps):
    """The version of Debian on which the image is based."""
    bases = [rest for name, rest in steps if name == "FROM"]
    found = len(bases) == 1 and re.fullmatch(r"docker\.io/library/debian:(\w+)-slim", bases[0])
    if not found or steps[0][0] != "FROM":
        raise StepError(f"the base of the image must be one of Debian, not {bases}")
    return found[1]


def packages(steps):
    """The packages that the steps install."""
    commands = [command.split() for name, rest in steps if name == "RUN" for command in rest.split("&&")]
    installs = [words[2:] for words in commands if words[:2] == ["apt-get", "install"]]
    return [word for words in installs for word in words if not word.startswith("-")]


def run(command, **options):
    """Runs a program. Fails with what it printed if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise StepError(f"`{shlex.join(map(str, command))}` ends with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def inside(root, command, env, user="root", folder="/"):
    """The command line that runs a command in the folder, as process 1 of its own."""
    switch = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"] if user != "root" else []
    pairs = [f"{name}={value}" for name, value in env.items()]
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, str(root)]
    return [*enter, "env", "-i", "-C", folder, *pairs, *switch, *command]


def contents(steps):
    """What a folder must have for these steps, as text."""
    return json.dumps([suite(steps), packages(steps), DPKG])


def is_fetched(folder, steps):
    mark = folder / MARK
    return mark.exists() and mark.read_text() == contents(steps)


def fetch(folder, steps):
    """Fetches the base system with debootstrap, and the packages that the steps install."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "packages").mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="image-") as made:
        root = Path(made, "root")
        run(["debootstrap", "--variant=minbase", suite(steps), root])
        (root / "etc/dpkg/dpkg.cfg.d/image").write_text(DPKG)
        archives = root / "var/cache/apt/archives"
        for file in archives.glob("*.deb"):
            file.unlink()
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        env = {"PATH": SEARCH_PATH, "DEBIAN_FRONTEND": "noninteractive"}
        run(inside(root, ["apt-get", "update"], env))
        options = ["install", "-y", "--download-only", "--no-install-recommends"]
        run(inside(root, ["apt-get", *options, *packages(steps)], env))
        for file in archives.glob("*.deb"):
            shutil.move(file, folder / "packages")
        index = "\n".join(index_entry(file) for file in sorted((folder / "packages").glob("*.deb")))
        (folder / "packages/Packages").write_text(index)
        for file in (root / "var/lib/apt/lists").glob("*_*"):
            file.unlink()
        (root / "etc/apt/sources.list").write_text("deb [trusted=yes] file:/packages ./\n")
        run(["tar", "-C", root, *(f"--exclude=.{path}" for path in LEFT_OUT), "-cf", folder / "base.tar", "."])
    (folder / MARK).write_text(contents(steps))


def index_entry(file):
    """The entry of a package in the index of a package source."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{run(['dpkg-deb', '-f', file])}Filename: {file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}\n"


class Image:
    """The folder that the steps change, and the settings that they make."""

    def __init__(self, folder, root, program):
        self.root, self.program = Path(root), program
        self.env, self.user, self.workdir = {"PATH": SEARCH_PATH}, "root", "/"
        self.entry, self.ports, self.volumes = [], [], []
        run(["tar", "-C", root, "-xf", folder / "base.tar"])
        shutil.copytree(folder / "packages", self.root / "packages")

    def step(self, name, rest):
        """Runs one instruction."""
        match name:
            case "FROM":
                pass
            case "RUN":
                run(inside(self.root, ["/bin/sh", "-c", rest], self.surroundings(), self.user, self.workdir))
            case "COPY":
                self.copy(rest.split())
            case "ENV":
                self.env |= dict(word.split("=", 1) for word in shlex.split(rest))
            case "USER":
                self.user = rest
            case "WORKDIR":
                (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
                self.workdir = rest
            case "VOLUME":
                self.volumes += json.loads(rest)
            case "EXPOSE":
                self.ports.append(int(rest))
            case "ENTRYPOINT":
                self.entry = json.loads(rest)
            case _:
                raise StepError("this program cannot run it")

    def copy(self, words):
        """Copies the program into the image. There is nothing else in the folder of the build."""
        *options, source, target = words
        modes = [option.removeprefix("--chmod=") for option in options if option.startswith("--chmod=")]
        if source != "skein" or len(modes) != len(options):
            raise StepError("this program copies only `skein`, with `--chmod`")
        path = self.root / target.lstrip("/")
        shutil.copyfile(self.program, path)
        path.chmod(int(modes[0], 8) if modes else 0o644)

    def surroundings(self):
        """The environment of a process in the image. An engine takes the home folder from the list of users."""
        accounts = (line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines())
        homes = {account[0]: account[5] for account in accounts}
        if self.user not in homes:
            raise StepError(f"there is no user `{self.user}`")
        return {"HOME": homes[self.user]} | self.env

    def command(self, words):
        """The command line that runs words as the user of the image."""
        return inside(self.root, words, self.surroundings(), self.user, self.workdir)


def build(image, steps):
    for number, (name, rest) in enumerate(steps, 1):
        try:
            image.step(name, rest)
        except (StepError, OSError) as error:
            raise StepError(f"step {number} of {len(steps)}, `{name} {rest}`: {error}") from error


def check(image):
    """Starts the image, and returns what it answers, as which user it runs, and how it ends."""
    open_loopback()
    command = image.command([*image.entry, *ARGUMENTS])
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        port = image.ports[0]
        wait_for(port, server)
        process = only_child(server.pid)
        status = Path(f"/proc/{process}/status").read_text()
        created = run(image.command(["skein", "token", "create", "--name", "ann"]))
        key = {"Authorization": f"Bearer {created.split()[-1]}"}
        found = {
            "healthz": get(port, "/healthz"),
            "foreign_host": get(port, "/healthz", {"Host": "elsewhere.example"})[0],
            "without_token": get(port, "/agents")[0],
            "with_token": get(port, "/agents", key)[0],
            "uids": field(status, "Uid"),
            "pid_inside": field(status, "NSpid")[-1],
            "capabilities": field(status, "CapEff"),
            # Commands of remote sessions start only in a sandbox.
            "sandbox": run(image.command(["skein", "sandbox", "--", "id", "-u"])),
            "git": run(image.command(["git", "--version"])).split()[:2],
            "folders": {path: describe(image.root, path) for path in [*image.volumes, "/etc/skein"]},
            "certificates": (image.root / "etc/ssl/certs/ca-certificates.crt").stat().st_size > 0,
            "data": (image.root / "var/lib/skein/tokens.db").exists(),
        }
        os.kill(process, signal.SIGTERM)
        server.wait(PATIENCE)
        return found | {"exit": server.returncode}
    finally:
        server.kill()
        server.wait()


def open_loopback():
    """Brings up the loopback interface of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up, set_flags, get_flags = 1, 0x8914, 0x8913
        answer = fcntl.ioctl(any_socket, get_flags, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", answer)[1]
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", flags | up))


def wait_for(port, server):
    """Waits until the server listens. Fails with what it printed if it ends before."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise StepError(f"the image ends with {server.returncode}:\n{server.stdout.read().decode()}")
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionError:
            time.sleep(0.05)
    raise StepError(f"nothing listens on port {port} after {PATIENCE} seconds")


def only_child(pid):
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def field(status, name):
    return next(line.split()[1:] for line in status.splitlines() if line.startswith(f"{name}:"))


def describe(root, path):
    """The owner and the mode of a folder in the image."""
    found = (root / path.lstrip("/")).stat()
    return [found.st_uid, found.st_gid, oct(found.st_mode & 0o7777)]


def get(port, path, headers=None):
    """The status and the body of an answer, under the public name."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", path, headers={"Host": PUBLIC_NAME} | (headers or {}))
    answer = connection.getresponse()
    return [answer.status, answer.read().decode()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--containerfile", default=Path(__file__).parents[3] / "packaging/Containerfile")
    parser.add_argument("action", choices=["fetched", "fetch", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("program", nargs="?")
    options = parser.parse_args()
    try:
        steps = instructions(options.containerfile)
        if options.action == "fetched":
            sys.exit(0 if is_fetched(options.folder, steps) else 1)
        if options.action == "fetch":
            return fetch(options.folder, steps)
        if not is_fetched(options.folder, steps):
            raise StepError(f"{options.folder} has not what the steps need: run scripts/bootstrap")
        with tempfile.TemporaryDirectory(prefix="image-") as root:
            image = Image(options.folder, root, options.program)
            build(image, steps)
            print(json.dumps(check(image)))
    except (StepError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
