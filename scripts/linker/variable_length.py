"""Numbers of variable length, as the tables of programs have them (LEB128)."""


def number(value):
    """Seven bits in each byte, the low ones first. All bytes but the last have their high bit set."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return encoded + bytes([value])
