"""Lets the linker make equal functions of Rust one, for scripts/link-dist.

C code may compare the addresses of functions, as SQLite does. Rust code may rely only on the addresses of its statics. The
linker (`--icf=safe`) keeps all parts of an object apart, unless the object lists the symbols whose addresses count. So the
objects of Rust get a list of their statics. It is what LLVM writes for the objects of clang.
"""

import struct

from elf import Header, Section
from variable_length import number

SYMBOLS, ADDRESSES, EXCLUDED = 2, 0x6FFF4C03, 0x80000000
# A symbol: its name, kind, visibility, section, address and size.
SYMBOL, KIND, DATA = struct.Struct("<IBBHQQ"), 15, 1


def allow(source, target):
    """Copies an object, with a list of its statics."""
    content = bytearray(source.read_bytes())
    header = Header.from_buffer(content)
    first = Section.from_buffer(content, header.sections)
    # With many sections, their number does not fit into the header.
    count = header.section_count or first.size
    sections = (Section * count).from_buffer(content, header.sections)
    place, symbols = next((at, one) for at, one in enumerate(sections) if one.type == SYMBOLS)
    known = enumerate(SYMBOL.iter_unpack(content[symbols.offset : symbols.offset + symbols.size]))
    statics = b"".join(number(at) for at, symbol in known if symbol[1] & KIND == DATA)
    if header.section_count:
        header.section_count += 1
    else:
        first.size += 1
    added = Section(type=ADDRESSES, flags=EXCLUDED, link=place, alignment=1, offset=len(content), size=len(statics))
    listed = bytes(sections) + bytes(added)
    header.sections = len(content) + len(statics)
    target.write_bytes(bytes(content) + statics + listed)
