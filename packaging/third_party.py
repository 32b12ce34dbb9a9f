"""The licence texts of the software in the program. scripts/release puts them into each package."""

import pathlib
import re

PACKAGING = pathlib.Path(__file__).resolve().parent
NAMED = re.compile(r"(?i)(un)?licen[cs]e|copying|notice|copyright")
# Folders of a crate that are not in the program.
UNUSED = {"tests", ".github", "images"}
# The texts for crates that name one of these licences and have no file with its text.
STANDARD = {"MIT": PACKAGING / "licences/MIT.txt", "Apache-2.0": PACKAGING.parent / "LICENSE"}
# What is in the program and is no crate.
DATA = {"all-MiniLM-L6-v2 (word vectors of the router): Apache-2.0": STANDARD["Apache-2.0"]}
INTRODUCTION = """\
Skein contains this software. Below each list of names is a licence text for it. Where a crate has a choice of licences,
all its texts are here. The source of a crate NAME is at https://crates.io/crates/NAME.
"""


class MissingLicence(Exception):
    """A crate has no licence text."""


def files_of(crate: dict) -> list[pathlib.Path]:
    folder = pathlib.Path(crate["manifest_path"]).parent
    found = [file for file in folder.rglob("*") if NAMED.match(file.name) and file.is_file()]
    return sorted(file for file in found if not UNUSED & set(file.relative_to(folder).parts))


def texts_of(crate: dict) -> list[str]:
    files = files_of(crate)
    if files:
        return [file.read_text(errors="replace").strip() for file in files]
    known = [STANDARD[name] for name in re.findall(r"[\w.-]+", crate["license"] or "") if name in STANDARD]
    if not known:
        raise MissingLicence(f"the crate {crate['name']} {crate['version']} has no licence text")
    holders = ", ".join(crate["authors"]) or f"the authors of {crate['name']}"
    return [f"Copyright (c) {holders}\n\n{known[0].read_text().strip()}"]


def licence_texts(crates: list[dict]) -> str:
    """Returns each text once, below the names of the software that it is for."""
    names = {}
    for name, file in DATA.items():
        names[file.read_text().strip()] = [name]
    for crate in crates:
        for text in texts_of(crate):
            names.setdefault(text, []).append(f"{crate['name']} {crate['version']}: {crate['license']}")
    parts = ["\n".join(dict.fromkeys(listed)) + f"\n\n{text}\n" for text, listed in names.items()]
    return f"\n{'=' * 80}\n\n".join([INTRODUCTION, *parts])
