"""Copies a package of npm with all packages that it needs."""

import json
import shutil
from pathlib import Path


def copy(source, package, target):
    """Copies from one folder `node_modules` to another. Returns false if the package is not there."""
    waiting, copied = [package], set()
    while waiting:
        name = waiting.pop()
        folder = Path(source, name)
        if name in copied or not folder.exists():
            continue
        copied.add(name)
        shutil.copytree(folder, Path(target, name), symlinks=True)
        # Those inside of it also use the ones next to it.
        for file in [folder / "package.json", *folder.glob("**/node_modules/**/package.json")]:
            waiting += json.loads(file.read_text()).get("dependencies", {})
    return package in copied
