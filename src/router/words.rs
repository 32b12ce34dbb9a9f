//! Provides a vector for each common English word or word piece, compiled in. `README.md` next to this file states
//! their source. With them, `invoice` and `bill` are close although they share few letters.

static TABLE: &[u8] = include_bytes!("words.bin");

const HEADER: usize = 16;

/// The length of the longest piece in the table, in characters.
const LONGEST: usize = 18;

/// What the 4-bit numbers of a vector stand for: k / 7 to the power of 1.75 for each k from -7 to 7. Most values are small,
/// so these levels are close together where they are small. The last number is not used.
static LEVELS: [f32; 16] = [
    -1.0,
    -0.763_559_9,
    -0.554_978_2,
    -0.375_563_5,
    -0.227_007_7,
    -0.111_655_7,
    -0.033_195_4,
    0.0, //
    0.033_195_4,
    0.111_655_7,
    0.227_007_7,
    0.375_563_5,
    0.554_978_2,
    0.763_559_9,
    1.0,
    0.0,
];

/// The table, read in place: sorted hashes, a scale for each, then the vectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordVectors {
    count: usize,
    dims: usize,
    table: &'static [u8],
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

impl WordVectors {
    /// Returns the built-in table. A test checks its header and size.
    pub(super) fn builtin() -> Self {
        Self { count: number(TABLE, 8) as usize, dims: number(TABLE, 12) as usize, table: TABLE }
    }

    pub(super) fn dims(&self) -> usize {
        self.dims
    }

    /// Returns the sum of the vectors of a word's pieces; all zero if a piece is unknown.
    pub(super) fn vector(&self, word: &str) -> Vec<f32> {
        let mut sum = vec![0.0; self.dims];
        for row in self.pieces(word) {
            self.add(row, &mut sum);
        }
        sum
    }

    fn add(&self, row: usize, sum: &mut [f32]) {
        let scale = f32::from_bits(number(self.table, HEADER + 4 * (self.count + row)));
        let bytes = self.dims / 2;
        let start = HEADER + 8 * self.count + row * bytes;
        let vector = self.table.get(start..start + bytes).unwrap_or_default();
        for (sums, pair) in sum.chunks_exact_mut(2).zip(vector) {
            sums[0] += scale * LEVELS[usize::from(pair & 0xf)];
            sums[1] += scale * LEVELS[usize::from(pair >> 4)];
        }
    }

    /// Splits a word greedily into the longest known pieces, as the source model does. Empty if a part is unknown.
    fn pieces(&self, word: &str) -> Vec<usize> {
        let mut rows = Vec::new();
        let mut rest = word;
        while !rest.is_empty() {
            let begin = rows.is_empty();
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).take(LONGEST).collect::<Vec<_>>();
            let found = ends.iter().rev().find_map(|end| Some((*end, self.row(&rest[..*end], begin)?)));
            let Some((end, row)) = found else { return Vec::new() };
            rows.push(row);
            rest = &rest[end..];
        }
        rows
    }

    fn row(&self, piece: &str, begin: bool) -> Option<usize> {
        let wanted = hash(if begin { "" } else { "##" }, piece);
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            match number(self.table, HEADER + 4 * middle).cmp(&wanted) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(middle),
            }
        }
        None
    }
}

/// Computes FNV-1a, like `scripts/words.py`.
fn hash(prefix: &str, piece: &str) -> u32 {
    prefix
        .bytes()
        .chain(piece.bytes())
        .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likeness(first: &str, second: &str) -> f32 {
        let words = WordVectors::builtin();
        let product = |first: &str, second: &str| -> f32 {
            words.vector(first).iter().zip(words.vector(second)).map(|(a, b)| a * b).sum()
        };
        product(first, second) / (product(first, first) * product(second, second)).sqrt()
    }

    #[test]
    fn the_table_is_whole() {
        let words = WordVectors::builtin();
        assert_eq!(&TABLE[..4], b"SKWV");
        assert_eq!(number(TABLE, 4), 2, "its version");
        assert_eq!(TABLE.len(), HEADER + words.count * (8 + words.dims / 2));
        let hashes = (0..words.count).map(|row| number(TABLE, HEADER + 4 * row)).collect::<Vec<_>>();
        assert!(hashes.is_sorted_by(|a, b| a < b), "sorted, and none twice");
    }

    #[test]
    fn words_of_like_meaning_are_nearer_than_others() {
        assert!(likeness("invoice", "bill") > likeness("invoice", "tree"));
        assert!(likeness("css", "stylesheet") > likeness("css", "invoice"));
    }

    #[test]
    fn a_word_of_no_known_piece_has_no_meaning() {
        for word in ["\u{4f60}\u{597d}", ""] {
            assert!(WordVectors::builtin().vector(word).iter().all(|value| *value == 0.0));
        }
    }
}
