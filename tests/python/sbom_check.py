"""Validates a bill of materials against the JSON Schema of CycloneDX 1.6. Prints each fault, and fails if there is one.

Usage: sbom_check.py FILE
"""

import json
import pathlib
import sys

import cyclonedx
from jsonschema import Draft7Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

FOLDER = pathlib.Path(cyclonedx.__file__).parent / "schema/_res"


def schema(name):
    return json.loads((FOLDER / name).read_text())


def main():
    whole = schema("bom-1.6.SNAPSHOT.schema.json")
    # It names the two others by their file, next to its own address.
    base = whole["$id"].rpartition("/")[0]
    names = ["spdx.SNAPSHOT.schema.json", "jsf-0.82.SNAPSHOT.schema.json"]
    parts = [(f"{base}/{name}", Resource.from_contents(schema(name), DRAFT7)) for name in names]
    Draft7Validator.check_schema(whole)
    validator = Draft7Validator(
        whole, registry=Registry().with_resources(parts), format_checker=Draft7Validator.FORMAT_CHECKER
    )
    bill = json.loads(pathlib.Path(sys.argv[1]).read_text())
    faults = [f"{fault.json_path}: {fault.message}" for fault in validator.iter_errors(bill)]
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


main()
