//! Texts of Compose files: variables in them, and command lines.

/// A text with its variables replaced, and those of which a default was taken; or the name of one
/// that has no default.
pub(crate) fn interpolated(text: &str) -> Result<(String, Vec<String>), String> {
    let (mut out, mut taken) = (String::new(), Vec::new());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, behind) = rest.split_at(at);
        out += before;
        let behind = behind.get(1..).unwrap_or_default();
        if let Some(more) = behind.strip_prefix('$') {
            out.push('$');
            rest = more;
        } else if let Some(braced) = behind.strip_prefix('{') {
            let end = braced.find('}').ok_or_else(|| format!("${{{braced}"))?;
            let (inner, more) =
                (braced.get(..end).unwrap_or_default(), braced.get(end + 1..).unwrap_or_default());
            let (name, default) = inner.split_once(":-").or_else(|| inner.split_once('-')).ok_or(inner)?;
            if name.contains(['?', '+', ':']) || default.contains('$') {
                return Err(inner.to_owned());
            }
            out += default;
            taken.push(name.to_owned());
            rest = more;
        } else {
            let name: String =
                behind.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            if name.is_empty() {
                return Err("$".to_owned());
            }
            return Err(name);
        }
    }
    out += rest;
    Ok((out, taken))
}

/// The words of a command line, as a shell would take them apart; `None`: a quotation does not end.
pub(crate) fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(end), c) if c == end => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().push(characters.next()?),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// A size as Compose writes it (`512m`, `1.5g`, `64MB`, bytes), as the topology file does: whole
/// MiB, KiB or bytes.
pub(crate) fn size(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "" | "b" => 1,
        "k" | "kb" => 1 << 10,
        "m" | "mb" => 1 << 20,
        "g" | "gb" => 1_u64 << 30,
        _ => return None,
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let (whole, places): (u64, u32) = (whole.parse().ok()?, part.len().try_into().ok()?);
    let part: u64 = if part.is_empty() { 0 } else { part.parse().ok()? };
    let part = part.checked_mul(factor)? / 10_u64.checked_pow(places)?;
    let bytes = whole.checked_mul(factor)?.checked_add(part)?;
    Some(match bytes {
        bytes if bytes > 0 && bytes % (1 << 20) == 0 => format!("{}MiB", bytes >> 20),
        bytes if bytes > 0 && bytes % (1 << 10) == 0 => format!("{}KiB", bytes >> 10),
        bytes => format!("{bytes}B"),
    })
}

/// A duration as Compose writes it (`1m30s`, `10s`, `500ms`), in milliseconds.
pub(crate) fn duration_ms(text: &str) -> Option<u64> {
    let (mut total, mut rest) = (0_u64, text.trim());
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, behind) = rest.split_at(digits);
        let letters = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, more) = behind.split_at(letters);
        let factor = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(factor)?)?;
        rest = more;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_their_default_or_are_named() {
        assert_eq!(interpolated("a$$b"), Ok(("a$b".into(), vec![])));
        assert_eq!(interpolated("${TAG:-1.2}-x${Y-}"), Ok(("1.2-x".into(), vec!["TAG".into(), "Y".into()])));
        for (text, name) in [
            ("$HOME/x", "HOME"),
            ("${A}", "A"),
            ("${A:?no}", "A:?no"),
            ("${A:-$B}", "A:-$B"),
            ("${A", "${A"),
            ("5$", "$"),
        ] {
            assert_eq!(interpolated(text), Err(name.to_owned()), "{text}");
        }
    }

    #[test]
    fn lines_are_taken_apart_as_a_shell_does() {
        let split = |line: &str| words(line).map(|words| words.join("|"));
        assert_eq!(split("a  'b c' \"d \\\" e\" f\\ g ''").as_deref(), Some("a|b c|d \" e|f g|"));
        assert_eq!(split(""), Some(String::new()));
        assert_eq!((split("a 'b"), split("a\\")), (None, None));
    }

    #[test]
    fn sizes_and_durations_are_those_of_the_topology_file() {
        let sizes = [
            ("512m", "512MiB"),
            ("1.5g", "1536MiB"),
            ("64MB", "64MiB"),
            ("1536", "1536B"),
            ("10k", "10KiB"),
            ("100b", "100B"),
        ];
        for (text, size_) in sizes {
            assert_eq!(size(text).as_deref(), Some(size_), "{text}");
        }
        for text in ["", "x", "1t", "-1m", "1.x", "99999999999999999999g"] {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!(
            (duration_ms("1m30s"), duration_ms("500ms"), duration_ms("5")),
            (Some(90_000), Some(500), None)
        );
    }
}
