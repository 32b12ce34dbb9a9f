//! The colours against both backgrounds and with colour blindness.

use super::*;

/// Matrices of Machado, Oliveira and Fernandes (2009) for full protanopia, deuteranopia and tritanopia.
const BLINDNESS: [[[f64; 3]; 3]; 3] = [
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
];

fn oklab([red, green, blue]: [f64; 3]) -> [f64; 3] {
    let l = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue).cbrt();
    let m = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue).cbrt();
    let s = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue).cbrt();
    [
        0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
        1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
        0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
    ]
}

fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
    one.max(other) / one.min(other)
}

#[test]
fn series_colors_contrast_with_both_backgrounds() {
    for color in SERIES {
        assert!(contrast(color, "#ffffff") >= 3.0, "{color} on white");
        assert!(contrast(color, "#14161a") >= 3.0, "{color} on dark");
    }
}

#[test]
fn series_colors_differ_with_color_blindness() {
    let seen = |color: &str, matrix: &[[f64; 3]; 3]| {
        let seen = matrix.map(|row| row.iter().zip(linear(color)).map(|(a, b)| a * b).sum::<f64>().clamp(0.0, 1.0));
        oklab(seen)
    };
    for matrix in &BLINDNESS {
        for (index, one) in SERIES.iter().enumerate() {
            for other in &SERIES[..index] {
                let (a, b) = (seen(one, matrix), seen(other, matrix));
                let distance = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                assert!(distance > 0.05, "{one} and {other}: {distance}");
            }
        }
    }
}

#[test]
fn text_on_every_scale_color_is_readable() {
    for step in 0..=100 {
        for color in [sequence(f64::from(step) / 100.0), diverging(f64::from(step) / 100.0)] {
            let text = if text_on(&color) == "k" { "#111111" } else { "#ffffff" };
            assert!(contrast(&color, text) >= 4.0, "{color}");
        }
    }
}
