#!/usr/bin/env python3
"""Builds the program as it is published, and prints its path. scripts/release packages it, and other scripts measure it.

    scripts/dist_build.py
    scripts/dist_build.py --example NAME [OPTION OF CARGO…]    an example in the same way, to measure beside it

The profile is `dist`, and the linker is scripts/link-dist. No path of this machine is in the program. `skein.symbols`
beside it is the same program with the names of its functions. Standard library only.
"""

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"
# The linker reads this list, which cargo does not know.
LIST = ROOT / "scripts/function-order.gz"


def remapped_places():
    """The folders of this machine whose paths compilers write into the program, and the names they get there."""
    cargo_home = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    # A toolchain with sources of the standard library names them by their place on this machine.
    compiler = os.environ.get("RUSTC", "rustc")
    printed = subprocess.run([compiler, "--print", "sysroot"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    places = {str(ROOT): "/skein", cargo_home: "/cargo", printed.stdout.strip(): "/rust"}
    # 1,600 files of dependencies are named. The last place that fits counts.
    return places | {str(sources): "/cargo" for sources in Path(cargo_home, "registry/src").glob("*")}


def build_folder():
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "dist-build", TARGET, "dist").absolute()


def run_cargo(arguments, variables=()):
    """Builds with the settings of a release, and returns the folder of the programs."""
    places = remapped_places()
    prefix_map = " ".join(f"-ffile-prefix-map={place}={name}" for place, name in places.items())
    environment = os.environ | {
        "CARGO_INCREMENTAL": "0",
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(f"--remap-path-prefix={place}={name}" for place, name in places.items()),
        "CFLAGS": prefix_map,
        "CXXFLAGS": prefix_map,
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER": str(ROOT / "scripts/link-dist"),
    }
    command = [os.environ.get("CARGO", "cargo"), "build", "--locked", "--profile", "dist"]
    command += ["--target", TARGET, "--target-dir", str(build_folder().parent.parent), *arguments]
    subprocess.run(command, cwd=ROOT, env=environment | dict(variables), check=True, stdout=sys.stderr)
    return build_folder()


def build(variables=()):
    """Builds the program, with these additional variables, and returns its path."""
    program = run_cargo(["--bin", "skein"], variables) / "skein"
    linked = linked_copy(program)
    if LIST.stat().st_mtime > linked.stat().st_mtime:
        os.utime(ROOT / "src/main.rs")
        run_cargo(["--bin", "skein"], variables)
        linked = linked_copy(program)
    shutil.copyfile(linked, symbols_of(program))
    symbols_of(program).chmod(0o755)
    return program


def linked_copy(program):
    """The copy that the linker wrote beside the program. Other versions and toolchains leave theirs in the same folder."""
    for copy in (program.parent / "deps").glob("skein-*.symbols"):
        linked = copy.with_suffix("")
        if linked.exists() and filecmp.cmp(program, linked, shallow=False):
            return copy
    sys.exit(f"dist_build: the linker of {program} was not scripts/link-dist; remove {program.parent} and repeat")


def symbols_of(program):
    """The path of the same program with the names of its functions."""
    return program.with_name("skein.symbols")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--example"] and len(sys.argv) > 2:
        print(run_cargo(sys.argv[1:]) / "examples" / sys.argv[2])
    elif len(sys.argv) == 1:
        print(build())
    else:
        sys.exit(__doc__)
