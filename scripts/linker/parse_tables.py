"""Packs the tables of the parsers for `analyze`, for scripts/link-dist: 7 MB of the program become 0.6 MB.

The tables are sections of the objects that the crates `tree-sitter-*` compile from C. A copy of such an object gets
sections without content in their place, which need no room in the program and are zeros in memory. The packed tables
are in another object. The linker replaces the function that returns a language with one of that object. Its first call
writes the tables to their place. So neither the crates nor Skein know of it. Needs ar, nm, objcopy and cc.
"""

import re
import subprocess
from pathlib import Path

from deflate import deflate

FOLDER = Path(__file__).resolve().parent

TABLES = [
    "ts_alias_sequences",
    "ts_lex_modes",
    "ts_parse_actions",
    "ts_parse_table",
    "ts_primary_state_ids",
    "ts_small_parse_table",
    "ts_small_parse_table_map",
]
LIBRARY = re.compile(r"libtree_sitter_\w+-[0-9a-f]{16}\.rlib")
LANGUAGE = re.compile(r"^[0-9a-f]+ T (tree_sitter_\w+)$", re.MULTILINE)
BEGIN = """
#include <pthread.h>

#include "inflate.h"
"""
ONE = """
extern unsigned char {table}[];
static const unsigned char {table}_packed[] = {{{bytes}}};
"""
WRAPPER = """
const void *__real_{language}(void);
static pthread_once_t {language}_once = PTHREAD_ONCE_INIT;
static void {language}_unpack(void) {{ {calls} }}
const void *__wrap_{language}(void) {{
    pthread_once(&{language}_once, {language}_unpack);
    return __real_{language}();
}}
"""


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def without_tables(source, target):
    """Copies the object of a parser without the content of its tables. Returns the name of its language and C code with
    the packed tables."""
    (language,) = LANGUAGE.findall(run("nm", source))
    changes, code, calls = [], "", ""
    for name in TABLES:
        content = target.with_suffix(f".{name}")
        run("objcopy", "--output-target=binary", f"--only-section=.rodata.{name}", source, content)
        if not content.stat().st_size:
            # Not each language has each table.
            continue
        table = f"{language}_{name}"
        changes += [f"--rename-section=.rodata.{name}=.bss.{name},alloc", f"--add-symbol={table}=.bss.{name}:0,global"]
        code += ONE.format(table=table, bytes=",".join(map(str, deflate(content.read_bytes()))))
        calls += f"inflate({table}_packed, {table}); "
    run("objcopy", *changes, source, target)
    return language, code + WRAPPER.format(language=language, calls=calls)


def arguments_for(libraries, folder):
    """What the linker gets in addition for these libraries. Without a parser among them, that is nothing."""
    folder.mkdir(exist_ok=True)
    objects, languages, code = [], [], BEGIN
    for library in libraries:
        if not LIBRARY.fullmatch(Path(library).name):
            continue
        for member in run("ar", "t", library).split():
            if member.endswith("-parser.o"):
                source, target = (folder / f"{len(objects)}.{kind}.o" for kind in ("full", "packed"))
                source.write_bytes(subprocess.run(["ar", "p", library, member], check=True, capture_output=True).stdout)
                language, more = without_tables(source, target)
                objects.append(target)
                languages.append(language)
                code += more
    if not languages:
        return []
    source, target = folder / "tables.c", folder / "tables.o"
    source.write_text(code)
    run("cc", "-Os", "-ffunction-sections", "-I", FOLDER, "-c", source, "-o", target)
    return [*map(str, objects), str(target), *(f"-Wl,--wrap={language}" for language in languages)]
