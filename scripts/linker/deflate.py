"""Packs bytes for inflate.h."""

import zlib


def deflate(content):
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()
