//! The characters of simple fonts: base encodings and the names of glyphs.

/// The encodings that a font can be based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BaseEncoding {
    Standard,
    WinAnsi,
    MacRoman,
}

/// The upper half of the standard encoding, from 0xa1.
const STANDARD: &str = "¡¢£⁄¥ƒ§¤'“«‹›ﬁﬂ\u{0}–†‡·\u{0}¶•‚„”»…‰\u{0}¿\u{0}`´ˆ˜¯˘˙¨\u{0}˚¸\u{0}˝˛ˇ—";

/// Returns the character of a code. `None` if the encoding has none.
pub(super) fn decode(encoding: BaseEncoding, code: u8) -> Option<char> {
    let single = |encoding: &'static encoding_rs::Encoding| {
        let bytes = [code];
        let (text, _) = encoding.decode_without_bom_handling(&bytes);
        text.chars().next().filter(|letter| !letter.is_control())
    };
    match (encoding, code) {
        (BaseEncoding::Standard, 0x27) => Some('’'),
        (BaseEncoding::Standard, 0x60) => Some('‘'),
        (_, 0x20..=0x7e) => Some(char::from(code)),
        (BaseEncoding::WinAnsi, 0xad) => Some('-'),
        (BaseEncoding::WinAnsi, 0x80..) => single(encoding_rs::WINDOWS_1252).or(Some('•')),
        (BaseEncoding::MacRoman, 0x80..) => single(encoding_rs::MACINTOSH),
        (BaseEncoding::Standard, 0xe1) => Some('Æ'),
        (BaseEncoding::Standard, 0xe3) => Some('ª'),
        (BaseEncoding::Standard, 0xe8) => Some('Ł'),
        (BaseEncoding::Standard, 0xe9) => Some('Ø'),
        (BaseEncoding::Standard, 0xea) => Some('Œ'),
        (BaseEncoding::Standard, 0xeb) => Some('º'),
        (BaseEncoding::Standard, 0xf1) => Some('æ'),
        (BaseEncoding::Standard, 0xf5) => Some('ı'),
        (BaseEncoding::Standard, 0xf8) => Some('ł'),
        (BaseEncoding::Standard, 0xf9) => Some('ø'),
        (BaseEncoding::Standard, 0xfa) => Some('œ'),
        (BaseEncoding::Standard, 0xfb) => Some('ß'),
        (BaseEncoding::Standard, 0xa1..=0xd0) => {
            STANDARD.chars().nth(usize::from(code - 0xa1)).filter(|letter| *letter != '\0')
        }
        _ => None,
    }
}

/// Names of glyphs and their text, for names that are neither a letter nor a code.
const NAMES: &str = "space= |exclam=!|quotedbl=\"|numbersign=#|dollar=$|percent=%|ampersand=&|quotesingle='|quoteright=’|\
    quoteleft=‘|parenleft=(|parenright=)|asterisk=*|plus=+|comma=,|hyphen=-|minus=−|period=.|slash=/|zero=0|one=1|two=2|\
    three=3|four=4|five=5|six=6|seven=7|eight=8|nine=9|colon=:|semicolon=;|less=<|equal==|greater=>|question=?|at=@|\
    bracketleft=[|backslash=\\|bracketright=]|asciicircum=^|underscore=_|grave=`|braceleft={|braceright=}|asciitilde=~|\
    exclamdown=¡|cent=¢|sterling=£|fraction=⁄|yen=¥|florin=ƒ|section=§|currency=¤|quotedblleft=“|quotedblright=”|\
    guillemotleft=«|guillemotright=»|guilsinglleft=‹|guilsinglright=›|fi=fi|fl=fl|ff=ff|ffi=ffi|ffl=ffl|endash=–|emdash=—|\
    dagger=†|daggerdbl=‡|periodcentered=·|paragraph=¶|bullet=•|quotesinglbase=‚|quotedblbase=„|ellipsis=…|\
    perthousand=‰|questiondown=¿|acute=´|circumflex=ˆ|tilde=˜|macron=¯|breve=˘|dotaccent=˙|dieresis=¨|ring=˚|cedilla=¸|\
    ogonek=˛|caron=ˇ|AE=Æ|ae=æ|OE=Œ|oe=œ|Oslash=Ø|oslash=ø|Lslash=Ł|lslash=ł|germandbls=ß|dotlessi=ı|ordfeminine=ª|\
    ordmasculine=º|Eth=Ð|eth=ð|Thorn=Þ|thorn=þ|mu=µ|degree=°|plusminus=±|multiply=×|divide=÷|onehalf=½|onequarter=¼|\
    threequarters=¾|onesuperior=¹|twosuperior=²|threesuperior=³|copyright=©|registered=®|trademark=™|logicalnot=¬|\
    brokenbar=¦|bar=\u{7c}|Euro=€|Agrave=À|Aacute=Á|Acircumflex=Â|Atilde=Ã|Adieresis=Ä|Aring=Å|Ccedilla=Ç|Egrave=È|\
    Eacute=É|Ecircumflex=Ê|Edieresis=Ë|Igrave=Ì|Iacute=Í|Icircumflex=Î|Idieresis=Ï|Ntilde=Ñ|Ograve=Ò|Oacute=Ó|\
    Ocircumflex=Ô|Otilde=Õ|Odieresis=Ö|Ugrave=Ù|Uacute=Ú|Ucircumflex=Û|Udieresis=Ü|Yacute=Ý|agrave=à|aacute=á|\
    acircumflex=â|atilde=ã|adieresis=ä|aring=å|ccedilla=ç|egrave=è|eacute=é|ecircumflex=ê|edieresis=ë|igrave=ì|iacute=í|\
    icircumflex=î|idieresis=ï|ntilde=ñ|ograve=ò|oacute=ó|ocircumflex=ô|otilde=õ|odieresis=ö|ugrave=ù|uacute=ú|\
    ucircumflex=û|udieresis=ü|yacute=ý|ydieresis=ÿ|Scaron=Š|scaron=š|Zcaron=Ž|zcaron=ž|Ccaron=Č|ccaron=č|Rcaron=Ř|\
    rcaron=ř|Ecaron=Ě|ecaron=ě|Sacute=Ś|sacute=ś|Cacute=Ć|cacute=ć|Zdotaccent=Ż|zdotaccent=ż|Aogonek=Ą|aogonek=ą|\
    Eogonek=Ę|eogonek=ę|Nacute=Ń|nacute=ń|Uring=Ů|uring=ů|alpha=α|beta=β|gamma=γ|delta=δ|epsilon=ε|zeta=ζ|eta=η|theta=θ|\
    iota=ι|kappa=κ|lambda=λ|nu=ν|xi=ξ|pi=π|rho=ρ|sigma=σ|tau=τ|upsilon=υ|phi=φ|chi=χ|psi=ψ|omega=ω|Gamma=Γ|Delta=Δ|\
    Theta=Θ|Lambda=Λ|Xi=Ξ|Pi=Π|Sigma=Σ|Phi=Φ|Psi=Ψ|Omega=Ω|infinity=∞|lessequal=≤|greaterequal=≥|notequal=≠|\
    approxequal=≈|summation=∑|product=∏|integral=∫|radical=√|partialdiff=∂|arrowright=→|arrowleft=←|arrowup=↑|\
    arrowdown=↓|element=∈|nbspace= |nonbreakingspace= |sfthyphen=-|softhyphen=-";

/// Returns the text of a glyph's name, such as `eacute`, `f_i`, `uni20AC` or `a.alt`. `None` if it is unknown.
pub(super) fn glyph_text(name: &str) -> Option<String> {
    let base = name.split('.').next().filter(|base| !base.is_empty())?;
    if let Some((first, rest)) = base.split_once('_') {
        return Some(glyph_text(first)? + &glyph_text(rest)?);
    }
    if base.len() == 1 {
        return Some(base.to_owned());
    }
    let code = base
        .strip_prefix("uni")
        .filter(|code| code.len() >= 4)
        .or_else(|| base.strip_prefix('u').filter(|code| code.len() >= 4));
    if let Some(code) = code
        && code.bytes().all(|digit| digit.is_ascii_hexdigit())
    {
        let digits = if base.starts_with("uni") { &code[..4] } else { code };
        return u32::from_str_radix(digits, 16).ok().and_then(char::from_u32).map(String::from);
    }
    // The text of `equal` and `bar` contains a separator.
    let entry = NAMES.split('|').find_map(|entry| entry.split_once('=').filter(|(known, _)| *known == base));
    match (base, entry) {
        ("bar", _) => Some("|".to_owned()),
        (_, Some((_, text))) => Some(text.to_owned()),
        (_, None) => None,
    }
}

/// Widths of Helvetica from the space on, in thousandths. Other fonts without widths are close enough to find words.
const HELVETICA: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556,
    556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833,
    722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556,
    556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334,
    260, 334, 584,
];

/// Returns the width of a character in a font that gives none, in thousandths.
pub(super) fn default_width(font: &str, code: u8) -> f32 {
    if font.contains("Courier") || font.contains("Mono") {
        return 600.0;
    }
    code.checked_sub(32).and_then(|at| HELVETICA.get(usize::from(at))).map_or(500.0, |width| f32::from(*width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glyph_names_have_text() {
        for (name, text) in [
            ("A", "A"),
            ("eacute", "é"),
            ("f_i", "fi"),
            ("uni20AC", "€"),
            ("u1F600", "😀"),
            ("one.lf", "1"),
            ("equal", "="),
            ("bar", "|"),
        ] {
            assert_eq!(glyph_text(name).as_deref(), Some(text), "{name}");
        }
        assert_eq!(glyph_text("g123"), None);
    }

    #[test]
    fn encodings_differ_in_quotes_and_the_upper_half() {
        assert_eq!(decode(BaseEncoding::Standard, 0x27), Some('’'));
        assert_eq!(decode(BaseEncoding::WinAnsi, 0x80), Some('€'));
        assert_eq!(decode(BaseEncoding::MacRoman, 0x8e), Some('é'));
        assert_eq!(decode(BaseEncoding::Standard, 0xd0), Some('—'));
        assert_eq!(decode(BaseEncoding::Standard, 0xae), Some('ﬁ'));
    }
}
