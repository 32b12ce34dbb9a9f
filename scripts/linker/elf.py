"""The headers of programs and objects in the format ELF, for 64 bits."""

import ctypes
from ctypes import c_uint16 as u16
from ctypes import c_uint32 as u32
from ctypes import c_uint64 as u64


class Header(ctypes.LittleEndianStructure):
    """Of an ELF file."""

    _fields_ = [
        *[("identity", ctypes.c_ubyte * 16), ("type", u16), ("machine", u16), ("version", u32), ("entry", u64)],
        *[("segments", u64), ("sections", u64), ("flags", u32), ("size", u16), ("segment_size", u16)],
        *[("segment_count", u16), ("section_size", u16), ("section_count", u16), ("names", u16)],
    ]


class Segment(ctypes.LittleEndianStructure):
    """What the kernel and the dynamic loader read."""

    _fields_ = [
        *[("type", u32), ("flags", u32), ("offset", u64), ("address", u64), ("physical", u64)],
        *[("file_size", u64), ("size", u64), ("alignment", u64)],
    ]


class Section(ctypes.LittleEndianStructure):
    """What tools read."""

    _fields_ = [
        *[("name", u32), ("type", u32), ("flags", u64), ("address", u64), ("offset", u64), ("size", u64)],
        *[("link", u32), ("info", u32), ("alignment", u64), ("entry_size", u64)],
    ]
