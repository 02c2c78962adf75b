//! A registry's demand for authentication: the header `WWW-Authenticate` (RFC 9110, 11.6.1).

/// Longest header that is looked at, in bytes.
const MAX_BYTES: usize = 4096;

/// The kind of authentication that is demanded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// Name and password, with each request.
    Basic,
    /// A token, which is had at `realm`.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

impl Challenge {
    /// Reads one header; `None`: it asks for something else.
    pub fn parse(header: &str) -> Option<Self> {
        if header.len() > MAX_BYTES {
            return None;
        }
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        let mut rest = rest;
        while let Some((key, value, behind)) = parameter(rest) {
            match key.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
            rest = behind;
        }
        Some(Self::Bearer { realm: realm?, service, scope })
    }
}

/// The first parameter of a list, and what follows it.
fn parameter(text: &str) -> Option<(&str, String, &str)> {
    let text = text.trim_start_matches([' ', '\t', ',']);
    let (key, rest) = text.split_once('=')?;
    let (key, rest) = (key.trim(), rest.trim_start());
    let Some(quoted) = rest.strip_prefix('"') else {
        let (value, rest) = rest.split_once(',').unwrap_or((rest, ""));
        return Some((key, value.trim().to_owned(), rest));
    };
    let (mut value, mut escaped) = (String::new(), false);
    for (at, character) in quoted.char_indices() {
        match character {
            _ if escaped => {
                value.push(character);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return Some((key, value, quoted.get(at + 1..).unwrap_or_default())),
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_registries_ask_for_is_understood() {
        let header = r#"Bearer realm="https://auth.example.org/token",service="registry",scope="repository:a/b:pull,push""#;
        let bearer = Challenge::Bearer {
            realm: "https://auth.example.org/token".into(),
            service: Some("registry".into()),
            scope: Some("repository:a/b:pull,push".into()),
        };
        assert_eq!(Challenge::parse(header), Some(bearer));
        let bare = Challenge::Bearer { realm: "x\"y".into(), service: Some("s".into()), scope: None };
        assert_eq!(Challenge::parse(r#"bearer realm="x\"y" , service=s,error=no"#), Some(bare));
        assert_eq!(Challenge::parse("Basic realm=\"all\""), Some(Challenge::Basic));
        for header in
            ["", "Negotiate", "Bearer", "Bearer realm", "Bearer realm=\"open", "Bearer service=\"x\""]
        {
            assert_eq!(Challenge::parse(header), None, "{header}");
        }
        assert_eq!(Challenge::parse(&format!("Bearer realm=\"{}\"", "x".repeat(MAX_BYTES))), None);
    }
}
