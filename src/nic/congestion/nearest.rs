//! Finds the known word that the user probably meant.

/// Returns the most similar known word, if up to a third of its letters differ or `word` is a part of it.
pub(super) fn nearest(word: &str, known: impl IntoIterator<Item = &'static str>) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    let distance = |other: &str| {
        let part = word.len() >= 3 && other.contains(&word);
        // A part counts as one wrong letter. Of two such words, the shorter is better.
        if part { 1.0 + other.len() as f64 / 1e3 } else { edits(&word, other) as f64 }
    };
    let best = known.into_iter().filter(|k| !k.is_empty()).map(|k| (distance(k), k));
    let best = best.min_by(|(a, _), (b, _)| a.total_cmp(b));
    // Nothing is suggested for text that resembles no word.
    best.filter(|(d, k)| *d <= (k.len() as f64 / 3.0).max(1.0)).map(|(_, k)| k)
}

/// Returns the Levenshtein distance: letters to insert, drop or replace.
fn edits(a: &str, b: &str) -> usize {
    const LONGEST: usize = 64;
    if a.len() > LONGEST {
        return LONGEST;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&str; 4] = ["rpg_ai_rate", "rpg_hai_rate", "dce_tcp_g", "rpg_min_rate"];

    #[test]
    fn typo_finds_its_word_nonsense_finds_none() {
        for (typed, meant) in [
            ("rpg_ai_rat", Some("rpg_ai_rate")),
            ("rgp_ai_rate", Some("rpg_ai_rate")),
            ("hai_rate", Some("rpg_hai_rate")),
            ("DCE_TCP_H", Some("dce_tcp_g")),
            ("dce_tcxyz", Some("dce_tcp_g")),
            ("ai_rate", Some("rpg_ai_rate")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, WORDS), meant, "{typed}");
        }
        assert_eq!(nearest(&"x".repeat(1 << 20), WORDS), None);
    }

    #[test]
    fn edits_are_counted() {
        assert_eq!((edits("", "abc"), edits("kitten", "sitting"), edits("same", "same")), (3, 3, 0));
        assert_eq!((edits("abc", ""), edits("abc", "c")), (3, 2));
    }
}
