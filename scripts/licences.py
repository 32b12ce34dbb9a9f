#!/usr/bin/env python3
"""Every dependency comes from a registry and under a licence of .deny.toml's list.

`cargo deny check licenses sources` says the same where cargo-deny is installed; this needs nothing but cargo.
"""
import json
import pathlib
import re
import subprocess
import sys
import tomllib

root = pathlib.Path(__file__).resolve().parent.parent
rules = tomllib.loads((root / ".deny.toml").read_text())
allowed = set(rules["licenses"]["allow"])

metadata = json.loads(
    subprocess.run(
        ["cargo", "metadata", "--locked", "--all-features", "--format-version", "1"], cwd=root, check=True, capture_output=True
    ).stdout
)


def permitted(expression: str) -> bool:
    """An SPDX expression with OR, AND, WITH and parentheses; `/` is an old way to write OR."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def either():
        value = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            value = both() or value
        return value

    def both():
        value = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = one() and value
        return value

    def one():
        token = tokens.pop(0)
        if token == "(":
            value = either()
            tokens.pop(0)
            return value
        if tokens and tokens[0] == "WITH":
            tokens.pop(0)
            token += " WITH " + tokens.pop(0)
        return token in allowed

    return either()


bad = []
packages = [package for package in metadata["packages"] if package["source"] is not None]
for package in packages:
    name = f"{package['name']} {package['version']}"
    if not package["source"].startswith("registry+"):
        bad.append(f"{name}: comes from {package['source']}, not from a registry")
    if not permitted(package["license"] or "none"):
        bad.append(f"{name}: licence {package['license']} is not in .deny.toml")
for line in bad:
    print(line, file=sys.stderr)
print(f"{len(packages)} dependencies, {len(bad)} with a licence or source that is not allowed")
sys.exit(1 if bad else 0)
