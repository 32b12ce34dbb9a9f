"""Builds and starts the scripted model, `model.rs`."""

import contextlib
import functools
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent


@functools.cache
def build():
    """The program. It needs no crate, so that cargo and its profiles have no part in it."""
    program = HERE.parent.parent / "target/bench/model"
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["rustc", "--edition=2024", "-O", "-o", program, HERE / "model.rs"], check=True)
    return program


@contextlib.contextmanager
def serve():
    """Runs the model, and gives its port."""
    with subprocess.Popen([build()], stdout=subprocess.PIPE) as model:
        try:
            yield int(model.stdout.readline())
        finally:
            model.terminate()
