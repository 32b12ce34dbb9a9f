"""Packs the tables that unwind the stack after a panic, for scripts/link-dist: 5.3 MB of the program become 1.3 MB.

Only panics and stack traces read them: `.eh_frame` tells how to leave each function, and `.gcc_except_table` which values
it drops. The linker puts them at the end of a segment. `pack` replaces them by their packed form and shortens the file.
The code in unwind_tables.c writes them to their place before they are used for the first time.

The packed form is deflated. It has one stream for each kind of number in these tables, because numbers of a kind are
alike. Most addresses are differences from the address before.
"""

import struct
from pathlib import Path

from deflate import deflate
from elf import Header, Section, Segment
from variable_length import number

PAGE = 4096
LOAD, UNUSED = 1, 0
# Of `.gcc_except_table`: a field that is not there, and numbers of variable length.
NONE, NUMBERS = 0xFF, 1


def without_sign(value):
    """Numbers near zero become small, whatever their sign."""
    return value << 1 ^ value >> 63


def difference(value):
    return number(without_sign(value))


def read_number(content, at):
    """A number in the shortest form, and where it ends."""
    value = shift = 0
    for place in range(at, len(content)):
        value |= (content[place] & 127) << shift
        shift += 7
        if content[place] < 128:
            if number(value) != content[at : place + 1]:
                break
            return value, place + 1
    raise ValueError(f"`.gcc_except_table` has an unknown number at {at}")


def frame_streams(frames, address):
    """The lengths and kinds of the records of `.eh_frame`, the addresses and sizes of functions, the addresses of their
    exception tables, and the other bytes of the records. Also returns these addresses. The kind is 0 for a record that is
    common to functions, 1 for a function, and 2 for a function with an exception table."""
    lengths, kinds, codes, sizes, exceptions, rest = streams = [bytearray() for _ in range(6)]
    at, common, code, exception, tables = 0, 0, 0, 0, set()
    while at < len(frames):
        (length,) = struct.unpack_from("<I", frames, at)
        lengths += number(length // 4)
        end = at + 4 + length
        at += 4
        if length == 0:
            continue
        (back,) = struct.unpack_from("<I", frames, at)
        if back == 0:
            kinds += number(0)
            common = at - 4
            at += 4
        else:
            begin, size = struct.unpack_from("<iI", frames, at + 4)
            has_exceptions = frames[at + 12]
            if at - back != common or length % 4 != 0 or has_exceptions not in (0, 4):
                raise ValueError(f"`.eh_frame` has an unknown record at {at - 4}")
            begin += address + at + 4
            codes += difference(begin - code)
            sizes += number(size)
            code = begin + size
            at += 13
            kinds += number(2 if has_exceptions else 1)
            if has_exceptions:
                own = struct.unpack_from("<i", frames, at)[0] + address + at
                exceptions += difference(own - exception)
                exception = own
                tables.add(own)
                at += 4
        rest += frames[at:end]
        at = end
    return streams, tables


def exception_streams(content, starts):
    """Of each table in `.gcc_except_table`: the form of its types and the length of its list of calls. Of each call: its
    distance from the end of the one before, its size, the code that drops values, and the type that is caught. Last, the
    other bytes of each table."""
    forms, lengths, gaps, sizes, pads, actions, rest = streams = [bytearray() for _ in range(7)]
    for start, end in zip(starts, [*starts[1:], len(content)], strict=True):
        forms.append(content[start + 1])
        at = start + 2
        if content[start + 1] != NONE:
            own = at
            while content[at] >= 128:
                at += 1
            at += 1
            forms += content[own:at]
        if content[start] != NONE or content[at] != NUMBERS:
            raise ValueError(f"`.gcc_except_table` has an unknown table at {start}")
        length, at = read_number(content, at + 1)
        lengths += number(length)
        calls_end = at + length
        before = pad = 0
        while at < calls_end:
            begin, at = read_number(content, at)
            size, at = read_number(content, at)
            own, at = read_number(content, at)
            action, at = read_number(content, at)
            gaps += difference(begin - before)
            before = begin + size
            sizes += number(size)
            # Zero if the call drops nothing.
            pads += number(0) if own == 0 else number(1 + without_sign(own - pad))
            pad = own or pad
            actions += number(action)
        rest += number(end - at) + content[at:end]
    return streams


def pack(program):
    """Packs the tables of a program in its file. A program without exceptions stays as it is."""
    program = Path(program)
    content = bytearray(program.read_bytes())
    header = Header.from_buffer(content)
    segments = (Segment * header.segment_count).from_buffer(content, header.segments)
    sections = (Section * header.section_count).from_buffer(content, header.sections)

    names = sections[header.names].offset
    named = {bytes(content[names + one.name : content.index(0, names + one.name)]): one for one in sections}
    if b".gcc_except_table" not in named:
        return
    place, frames, exceptions = named[b".unwind_place"], named[b".eh_frame"], named[b".gcc_except_table"]
    end = exceptions.address + exceptions.size
    segment = next((one for one in segments if one.type == LOAD and one.address + one.file_size == end), None)
    if segment is None:
        raise ValueError("the unwind tables are not at the end of a segment: see unwind_tables.ld")
    to_offset = segment.offset - segment.address

    streams, tables = frame_streams(content[frames.offset : frames.offset + frames.size], frames.address)
    starts = [0, *sorted(table - exceptions.address for table in tables if table > exceptions.address)]
    streams += exception_streams(content[exceptions.offset : exceptions.offset + exceptions.size], starts)
    packed = deflate(b"".join(streams))
    begin = -(-frames.address // PAGE) * PAGE
    removed = (end - begin - len(packed)) // PAGE * PAGE
    if removed <= 0:
        # Too small. The tables stay in their place.
        begin, removed, packed = end, 0, b""
    values = place.address, frames.address, frames.size, exceptions.address, end, begin, *map(len, streams)
    struct.pack_into(f"<{len(values)}Q", content, place.offset, *values)

    # What follows the tables moves up by whole pages.
    rest = end + to_offset
    if removed:
        # In memory, the segment keeps its size, so that nothing else gets these pages.
        segment.file_size = begin + len(packed) - segment.address
        # For programs that copy sections, one section has the packed tables and the other is gone.
        frames.size = begin + len(packed) - frames.address
        exceptions.type, exceptions.flags, exceptions.address, exceptions.size = UNUSED, 0, 0, 0
    for one in (*segments, *sections):
        if one.offset >= rest:
            one.offset -= removed
    header.sections -= removed
    kept = content[: begin + to_offset] + packed
    program.write_bytes(kept + bytes(rest - removed - len(kept)) + content[rest:])
