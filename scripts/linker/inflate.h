/* Unpacks data in the deflate format (RFC 1951). scripts/link-dist makes the data. */

#include <stdint.h>
#include <string.h>

enum { MAX_BITS = 15, MAX_LITERALS = 288, MAX_DISTANCES = 32, END_OF_BLOCK = 256 };

struct input {
    const unsigned char *next;
    uint32_t bits, count;
};

static unsigned take(struct input *input, unsigned count) {
    while (input->count < count) {
        input->bits |= (uint32_t)*input->next++ << input->count;
        input->count += 8;
    }
    unsigned value = input->bits & ((1u << count) - 1);
    input->bits >>= count;
    input->count -= count;
    return value;
}

/* The number of codes of each length, and the symbols in the order of their codes. */
struct code {
    uint16_t count[MAX_BITS + 1], symbols[MAX_LITERALS];
};

static void make_code(struct code *code, const unsigned char *lengths, unsigned symbols) {
    uint16_t next[MAX_BITS + 1];
    memset(code->count, 0, sizeof code->count);
    for (unsigned at = 0; at < symbols; at++) code->count[lengths[at]]++;
    code->count[0] = 0;
    next[1] = 0;
    for (unsigned length = 1; length < MAX_BITS; length++) next[length + 1] = next[length] + code->count[length];
    for (unsigned at = 0; at < symbols; at++)
        if (lengths[at] != 0) code->symbols[next[lengths[at]]++] = at;
}

static unsigned take_symbol(struct input *input, const struct code *code) {
    unsigned value = 0, first = 0, at = 0;
    for (unsigned length = 1;; length++) {
        value |= take(input, 1);
        unsigned count = code->count[length];
        if (value < first + count) return code->symbols[at + value - first];
        at += count;
        first = (first + count) << 1;
        value <<= 1;
    }
}

static void make_fixed_codes(struct code *literals, struct code *distances) {
    unsigned char lengths[MAX_LITERALS];
    memset(lengths, 8, 144);
    memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24);
    memset(lengths + 280, 8, 8);
    make_code(literals, lengths, MAX_LITERALS);
    memset(lengths, 5, MAX_DISTANCES);
    make_code(distances, lengths, MAX_DISTANCES);
}

static void take_codes(struct input *input, struct code *literals, struct code *distances) {
    static const unsigned char order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    unsigned char lengths[MAX_LITERALS + MAX_DISTANCES] = {0};
    unsigned literal_count = take(input, 5) + 257, distance_count = take(input, 5) + 1, used = take(input, 4) + 4;
    for (unsigned at = 0; at < used; at++) lengths[order[at]] = take(input, 3);
    struct code code;
    make_code(&code, lengths, sizeof order);
    for (unsigned at = 0; at < literal_count + distance_count;) {
        unsigned symbol = take_symbol(input, &code), times = 1;
        unsigned char length = symbol < 16 ? symbol : symbol == 16 ? lengths[at - 1] : 0;
        if (symbol == 16) times = 3 + take(input, 2);
        if (symbol == 17) times = 3 + take(input, 3);
        if (symbol == 18) times = 11 + take(input, 7);
        while (times-- > 0) lengths[at++] = length;
    }
    make_code(literals, lengths, literal_count);
    make_code(distances, lengths + literal_count, distance_count);
}

static unsigned char *inflate_block(struct input *input, unsigned kind, unsigned char *out) {
    struct code literals, distances;
    if (kind == 0) {
        /* Plain bytes, from the next whole byte on. */
        input->bits = input->count = 0;
        unsigned length = take(input, 16);
        take(input, 16);
        memcpy(out, input->next, length);
        input->next += length;
        return out + length;
    }
    if (kind == 1) {
        make_fixed_codes(&literals, &distances);
    } else {
        take_codes(input, &literals, &distances);
    }
    for (unsigned symbol; (symbol = take_symbol(input, &literals)) != END_OF_BLOCK;) {
        if (symbol < END_OF_BLOCK) {
            *out++ = symbol;
            continue;
        }
        /* The first lengths and distances have no extra bits. Then groups of four lengths, or two distances, have one
           bit more than the group before. */
        unsigned step = symbol - END_OF_BLOCK - 1, length = 3 + step, extra;
        if (step == 28) {
            length = 258;
        } else if (step >= 8) {
            extra = step / 4 - 1;
            length = 3 + ((4 + step % 4) << extra) + take(input, extra);
        }
        step = take_symbol(input, &distances);
        unsigned distance = 1 + step;
        if (step >= 4) {
            extra = step / 2 - 1;
            distance = 1 + ((2 + step % 2) << extra) + take(input, extra);
        }
        /* The repetition may overlap itself. */
        for (; length > 0; length--, out++) *out = *(out - distance);
    }
    return out;
}

static void inflate(const unsigned char *packed, unsigned char *out) {
    struct input input = {packed, 0, 0};
    unsigned is_last;
    do {
        is_last = take(&input, 1);
        out = inflate_block(&input, take(&input, 2), out);
    } while (!is_last);
}
