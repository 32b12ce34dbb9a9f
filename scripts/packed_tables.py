"""Packs the parse tables of `analyze` for scripts/link-dist: 6 MB of the program that compress to 0.8 MB.

The tables are sections of the objects that the crates `tree-sitter-*` compile from C. A copy of such an object gets
sections without content in their place, which need no room in the program and are zeros in memory. The packed tables
are in another object. The linker replaces the function that returns a language with one of that object. Its first call
writes the tables to their place. So neither the crates nor Skein know of it. Needs ar, nm, objcopy and cc.
"""

import re
import subprocess
from pathlib import Path

TABLES = ["ts_parse_table", "ts_small_parse_table"]
# The shortest repetition that is packed.
LEAST = 8
LIBRARY = re.compile(r"libtree_sitter_\w+-[0-9a-f]{16}\.rlib")
LANGUAGE = re.compile(r"^[0-9a-f]+ T (tree_sitter_\w+)$", re.MULTILINE)
# Writes the content of packed tables to their place.
UNPACK = """
#include <pthread.h>
#include <stddef.h>
#include <string.h>

static size_t number(const unsigned char **at) {
    size_t value = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char byte = *(*at)++;
        value |= (size_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
}

static void unpack(const unsigned char *at, const unsigned char *end, unsigned char *out) {
    while (at < end) {
        size_t length = number(&at);
        memcpy(out, at, length);
        at += length;
        out += length;
        if (at == end) return;
        length = number(&at);
        size_t distance = number(&at);
        /* The repetition may overlap itself. */
        for (; length > 0; length--, out++) *out = *(out - distance);
    }
}
"""
ONE = """
extern unsigned char {table}[];
extern const unsigned char {table}_packed[], {table}_end[];
__asm__(".section .rodata\\n{table}_packed: .byte {bytes}\\n{table}_end:\\n.previous\\n");
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


def number(value):
    """Seven bits in each byte, the low ones first. All bytes but the last have their high bit set."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return encoded + bytes([value])


def pack(table):
    """Literal bytes and repetitions of earlier ones in turn: the length and the bytes, the length and the distance."""
    earlier, packed, begin, at = {}, bytearray(), 0, 0
    while at + LEAST <= len(table):
        key = table[at : at + LEAST]
        source, earlier[key] = earlier.get(key), at
        if source is None:
            # The tables consist of numbers with two bytes.
            at += 2
            continue
        length = LEAST
        step = 4096
        while step > 0:
            more = slice(at + length, at + length + step)
            if more.stop <= len(table) and table[more] == table[source + length : source + length + step]:
                length += step
            else:
                step //= 2
        packed += number(at - begin) + table[begin:at] + number(length) + number(at - source)
        begin = at = at + length
    return bytes(packed + number(len(table) - begin) + table[begin:])


def without_tables(source, target):
    """Copies the object of a parser without the content of its tables. Returns the name of its language and C code with
    the packed tables."""
    (language,) = LANGUAGE.findall(run("nm", source))
    changes, code, calls = [], "", ""
    for name in TABLES:
        content = target.with_suffix(f".{name}")
        run("objcopy", "--output-target=binary", f"--only-section=.rodata.{name}", source, content)
        table = f"{language}_{name}"
        changes += [f"--rename-section=.rodata.{name}=.bss.{name},alloc", f"--add-symbol={table}=.bss.{name}:0,global"]
        code += ONE.format(table=table, bytes=",".join(map(str, pack(content.read_bytes()))))
        calls += f"unpack({table}_packed, {table}_end, {table}); "
    run("objcopy", *changes, source, target)
    return language, code + WRAPPER.format(language=language, calls=calls)


def arguments_for(libraries, folder):
    """What the linker gets in addition for these libraries. Without a parser among them, that is nothing."""
    folder.mkdir(exist_ok=True)
    objects, languages, code = [], [], UNPACK
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
    run("cc", "-Os", "-ffunction-sections", "-c", source, "-o", target)
    return [*map(str, objects), str(target), *(f"-Wl,--wrap={language}" for language in languages)]
