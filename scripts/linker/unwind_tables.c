/* Writes the unwind tables of the program to their place before they are used for the first time.

   unwind_tables.py makes the packed form. The header of the program does not name the tables, so that no other program
   looks for them. They are registered as those of code that is generated at run time. */

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "inflate.h"

enum { FRAME_STREAMS = 6, STREAMS = 13, NONE = 0xff, NUMBERS = 1 };

/* Addresses as in the file of the program, and sizes. unwind_tables.py writes them. */
struct place {
    uint64_t self, frames, frames_size, exceptions, end;
    /* The packed tables, at the first whole page of the tables. At the end if they are not packed. */
    uint64_t packed;
    /* The sizes of the unpacked streams. */
    uint64_t streams[STREAMS];
};

__attribute__((section(".unwind_place"), used)) static const volatile struct place written = {.self = 0};

static uint64_t number(const unsigned char **at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
}

static int64_t difference(const unsigned char **at) {
    uint64_t value = number(at);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

static void put(unsigned char *out, uint64_t value) {
    uint32_t word = value;
    memcpy(out, &word, sizeof word);
}

/* Makes the records of `.eh_frame` from their streams. unwind_tables.py names the kinds. */
static void make_frames(const unsigned char **streams, const struct place *place, unsigned char *out) {
    const unsigned char **lengths = &streams[0], **kinds = &streams[1], **codes = &streams[2], **sizes = &streams[3];
    const unsigned char **exceptions = &streams[4], **rest = &streams[5];
    uint64_t common = 0, code = 0, exception = 0;
    for (uint64_t at = 0; at < place->frames_size;) {
        uint64_t length = number(lengths) * 4, end = at + 4 + length, kind;
        put(out + at, length);
        at += 4;
        if (length == 0) continue;
        kind = number(kinds);
        if (kind == 0) {
            put(out + at, 0);
            common = at - 4;
            at += 4;
        } else {
            /* Each record of a function here belongs to the nearest record before it that is common to functions. */
            uint64_t size;
            put(out + at, at - common);
            code += difference(codes);
            put(out + at + 4, code - (place->frames + at + 4));
            size = number(sizes);
            put(out + at + 8, size);
            code += size;
            out[at + 12] = kind == 1 ? 0 : 4;
            at += 13;
            if (kind == 2) {
                exception += difference(exceptions);
                put(out + at, exception - (place->frames + at));
                at += 4;
            }
        }
        memcpy(out + at, *rest, end - at);
        *rest += end - at;
        at = end;
    }
}

static unsigned char *put_number(unsigned char *out, uint64_t value) {
    for (; value > 127; value >>= 7) *out++ = (value & 127) | 128;
    *out++ = value;
    return out;
}

/* Makes `.gcc_except_table` from its streams. */
static void make_exceptions(const unsigned char **streams, const struct place *place, unsigned char *out) {
    const unsigned char **forms = &streams[0], **lengths = &streams[1], **gaps = &streams[2], **sizes = &streams[3];
    const unsigned char **pads = &streams[4], **actions = &streams[5], **rest = &streams[6];
    for (const unsigned char *end = out + (place->end - place->exceptions); out < end;) {
        unsigned char form = *(*forms)++;
        *out++ = NONE;
        *out++ = form;
        if (form != NONE) {
            while (**forms >= 128) *out++ = *(*forms)++;
            *out++ = *(*forms)++;
        }
        *out++ = NUMBERS;
        uint64_t size = number(lengths), before = 0, pad = 0;
        out = put_number(out, size);
        for (const unsigned char *calls_end = out + size; out < calls_end;) {
            uint64_t begin = before + difference(gaps), length = number(sizes), packed_pad = number(pads);
            before = begin + length;
            out = put_number(put_number(out, begin), length);
            if (packed_pad != 0) pad += ((packed_pad - 1) >> 1) ^ -((packed_pad - 1) & 1);
            out = put_number(put_number(out, packed_pad == 0 ? 0 : pad), number(actions));
        }
        size = number(rest);
        memcpy(out, *rest, size);
        *rest += size;
        out += size;
    }
}

/* Of the library that unwinds the stack. It keeps its state in `object`. */
void __register_frame_info(const void *frames, void *object);
const void *__real__Unwind_Find_FDE(void *code, void *bases);

static unsigned char *memory(void *address, size_t size, int more) {
    void *made = mmap(address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | more, -1, 0);
    if (made == MAP_FAILED) {
        static const char problem[] = "skein: no memory to unwind the stack\n";
        (void)!write(STDERR_FILENO, problem, sizeof problem - 1);
        abort();
    }
    return made;
}

static void unpack(unsigned char *base, const struct place *place) {
    uint64_t size = place->end - place->frames, streams_size = 0;
    for (int at = 0; at < STREAMS; at++) streams_size += place->streams[at];
    unsigned char *unpacked = memory(NULL, streams_size, 0), *tables = memory(NULL, size, 0);
    inflate(base + place->packed, unpacked);
    const unsigned char *streams[STREAMS], *next = unpacked;
    for (int at = 0; at < STREAMS; next += place->streams[at], at++) streams[at] = next;
    make_frames(streams, place, tables);
    make_exceptions(streams + FRAME_STREAMS, place, tables + (place->exceptions - place->frames));

    /* The bytes before the first whole page are in the file. */
    uint64_t skipped = place->packed - place->frames;
    unsigned char *pages = memory(base + place->packed, size - skipped, MAP_FIXED);
    memcpy(pages, tables + skipped, size - skipped);
    mprotect(pages, size - skipped, PROT_READ);
    munmap(unpacked, streams_size);
    munmap(tables, size);
}

/* Where the tables are once they are registered. */
static const void *registered;

/* A child process that was forked while this runs must not unwind. */
static void add_tables(void) {
    static void *object[16];
    struct place place;
    memcpy(&place, (const void *)&written, sizeof place);
    unsigned char *base = (unsigned char *)&written - place.self;
    if (place.packed < place.end) unpack(base, &place);
    registered = base + place.frames;
    __register_frame_info(registered, object);
}

/* Since GCC 13, the library forgets all tables when the process exits. This runs after its destructor, because the linker
   gets this file first. */
__attribute__((destructor)) static void add_tables_again(void) {
    static void *object[16];
    if (registered != NULL) __register_frame_info(registered, object);
}

const void *__wrap__Unwind_Find_FDE(void *code, void *bases) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, add_tables);
    return __real__Unwind_Find_FDE(code, bases);
}
