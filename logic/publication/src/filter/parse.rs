//! The text of a filter, read.

use super::{DEPTH_MAX, FilterError, Literal, Operand, Part, Relation};
use wire::events::{FILTER_FIELDS_MAX, FILTER_NODES_MAX};

/// The parts of a filter: its fields, its parts, and the part that is the whole.
type Parsed = (Vec<Vec<String>>, Vec<Part>, usize);

pub(super) fn parse(text: &str) -> Result<Parsed, FilterError> {
    let mut parser = Parser { text, at: 0, depth: 0, cost: 0, fields: Vec::new(), parts: Vec::new() };
    let root = parser.either()?;
    parser.space();
    if parser.at < text.len() {
        return Err(parser.unexpected("the end, `&&` or `||`"));
    }
    Ok((parser.fields, parser.parts, root))
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
    cost: usize,
    fields: Vec<Vec<String>>,
    parts: Vec<Part>,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn unexpected(&self, expected: &'static str) -> FilterError {
        let found = self.rest().split(char::is_whitespace).next().unwrap_or_default();
        let found = found.chars().take(16).collect::<String>();
        let found = if found.is_empty() { "the end".to_owned() } else { format!("`{found}`") };
        FilterError::Unexpected { at: self.at, expected, found }
    }

    /// Whether these characters come next; they are taken.
    fn takes(&mut self, token: &str) -> bool {
        self.space();
        let there = self.rest().starts_with(token);
        if there {
            self.at += token.len();
        }
        there
    }

    fn wants(&mut self, token: &str, expected: &'static str) -> Result<(), FilterError> {
        if self.takes(token) { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    fn part(&mut self, part: Part, cost: usize) -> Result<usize, FilterError> {
        self.cost += cost;
        if self.cost > FILTER_NODES_MAX {
            return Err(FilterError::Costly);
        }
        self.parts.push(part);
        Ok(self.parts.len() - 1)
    }

    fn either(&mut self) -> Result<usize, FilterError> {
        let mut one = self.both()?;
        while self.takes("||") {
            let other = self.both()?;
            one = self.part(Part::Either(one, other), 1)?;
        }
        Ok(one)
    }

    fn both(&mut self) -> Result<usize, FilterError> {
        let mut one = self.one()?;
        while self.takes("&&") {
            let other = self.one()?;
            one = self.part(Part::Both(one, other), 1)?;
        }
        Ok(one)
    }

    fn deeper<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T, FilterError>,
    ) -> Result<T, FilterError> {
        if self.depth >= DEPTH_MAX {
            return Err(FilterError::Deep);
        }
        self.depth += 1;
        let read = inner(self);
        self.depth -= 1;
        read
    }

    fn one(&mut self) -> Result<usize, FilterError> {
        self.space();
        if self.rest().starts_with('!') && !self.rest().starts_with("!=") {
            self.at += 1;
            let one = self.deeper(Self::one)?;
            return self.part(Part::Not(one), 1);
        }
        if self.takes("(") {
            let one = self.deeper(Self::either)?;
            self.wants(")", "`)`")?;
            return Ok(one);
        }
        let before = self.at;
        if self.word() == Some("has") && self.takes("(") {
            let Operand::Field(field) = self.operand()? else {
                return Err(self.unexpected("a field"));
            };
            self.wants(")", "`)`")?;
            return self.part(Part::Has(field), 1);
        }
        self.at = before;
        self.comparison()
    }

    fn comparison(&mut self) -> Result<usize, FilterError> {
        let one = self.operand()?;
        self.space();
        let before = self.at;
        if self.word() == Some("in") {
            let literals = self.literals()?;
            let cost = literals.len();
            return self.part(Part::Among(one, literals), cost);
        }
        self.at = before;
        let Some(relation) = self.relation() else {
            // What may follow a value by itself; anything else was meant for a relation.
            let rest = self.rest();
            let ends = rest.is_empty() || ["&&", "||", ")"].iter().any(|token| rest.starts_with(token));
            let odd = rest.starts_with(['=', '<', '>', '~']);
            return if ends || !odd {
                self.part(Part::Holds(one), 1)
            } else {
                Err(self.unexpected("a relation, as `==`"))
            };
        };
        let other = self.operand()?;
        self.part(Part::Compare(one, relation, other), 1)
    }

    fn relation(&mut self) -> Option<Relation> {
        let relations = [
            ("==", Relation::Equal),
            ("!=", Relation::Unequal),
            ("<=", Relation::LessOrEqual),
            (">=", Relation::GreaterOrEqual),
            ("<", Relation::Less),
            (">", Relation::Greater),
        ];
        relations.into_iter().find(|(token, _)| self.takes(token)).map(|(_, relation)| relation)
    }

    fn literals(&mut self) -> Result<Vec<Literal>, FilterError> {
        self.wants("[", "`[`")?;
        let mut literals = Vec::new();
        loop {
            self.space();
            let literal = self.literal()?.ok_or_else(|| self.unexpected("a value"))?;
            literals.push(literal);
            if literals.len() > FILTER_NODES_MAX {
                return Err(FilterError::Costly);
            }
            if !self.takes(",") {
                break;
            }
        }
        self.wants("]", "`,` or `]`")?;
        Ok(literals)
    }

    fn operand(&mut self) -> Result<Operand, FilterError> {
        self.space();
        if let Some(literal) = self.literal()? {
            return Ok(Operand::Literal(literal));
        }
        let mut path = Vec::new();
        loop {
            let name = self.word().map(str::to_owned);
            path.push(name.ok_or_else(|| self.unexpected("a field or a value"))?);
            if !self.rest().starts_with('.') {
                break;
            }
            self.at += 1;
        }
        if let Some(known) = self.fields.iter().position(|field| *field == path) {
            return Ok(Operand::Field(known));
        }
        if self.fields.len() >= FILTER_FIELDS_MAX {
            return Err(FilterError::Fields);
        }
        self.fields.push(path);
        Ok(Operand::Field(self.fields.len() - 1))
    }

    /// A name, which is taken.
    fn word(&mut self) -> Option<&str> {
        self.space();
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let first = rest.chars().next()?;
        if length == 0 || first.is_numeric() {
            return None;
        }
        self.at += length;
        rest.get(..length)
    }

    fn literal(&mut self) -> Result<Option<Literal>, FilterError> {
        let (before, rest) = (self.at, self.rest());
        if rest.starts_with('"') {
            return self.text().map(Some);
        }
        if rest.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+') {
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
            let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            let number =
                rest.get(..length).and_then(|text| text.parse().ok()).filter(|n: &f64| n.is_finite());
            self.at += length;
            return number.map(|number| Some(Literal::Number(number))).ok_or(FilterError::Number(before));
        }
        let literal = match self.word() {
            Some("true") => Some(Literal::Bool(true)),
            Some("false") => Some(Literal::Bool(false)),
            Some("null") => Some(Literal::Null),
            _ => None,
        };
        if literal.is_none() {
            self.at = before;
        }
        Ok(literal)
    }

    /// A string as JSON has it.
    fn text(&mut self) -> Result<Literal, FilterError> {
        let (before, rest) = (self.at, self.rest());
        let mut escaped = false;
        let end = rest.char_indices().skip(1).find(|&(_, c)| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let whole = end.and_then(|(end, _)| rest.get(..=end)).ok_or(FilterError::Text(before))?;
        let text = serde_json::from_str(whole).map_err(|_| FilterError::Text(before))?;
        self.at += whole.len();
        Ok(Literal::Text(text))
    }
}
