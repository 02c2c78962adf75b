//! The public integer constants of a module of `wire`, with their values: a small evaluator of
//! constant expressions.

use std::collections::BTreeMap;
use syn::{BinOp, Expr, Item, Lit, UnOp, Visibility};

/// Expressions nest no deeper than this; a constant that is defined by itself ends here.
const MAX_DEPTH: u32 = 32;

/// A public integer constant, or a public variant with a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant {
    /// Path inside the file: `ioctl::GET_SESSION`, `Kind::Hello`, `VERSION`.
    pub path: String,
    /// Line of its definition.
    pub line: usize,
    /// Its value, or what could not be computed.
    pub value: Result<i128, String>,
}

/// Everything of one file that has a value.
#[derive(Default)]
struct Scope {
    values: BTreeMap<String, Expr>,
    functions: BTreeMap<String, (Vec<String>, Expr)>,
    public: Vec<(String, usize)>,
}

/// All public integer constants of a file, in its order.
///
/// # Errors
/// Where the text is no Rust.
pub fn public_constants(text: &str) -> syn::Result<Vec<Constant>> {
    let file = syn::parse_file(text)?;
    let mut scope = Scope::default();
    scope.collect("", &file.items);
    let constant = |(path, line): &(String, usize)| {
        let module = path.rsplit_once("::").map_or("", |(module, _)| module);
        let value = scope.values.get(path).ok_or_else(|| "it has no expression".to_owned());
        Constant {
            path: path.clone(),
            line: *line,
            value: value.and_then(|value| scope.evaluate(module, value, &BTreeMap::new(), 0)),
        }
    };
    Ok(scope.public.iter().map(constant).collect())
}

/// The value of an expression that needs no names: `64 * 1024`, `0x10`.
pub fn evaluate(text: &str) -> Option<i128> {
    let expression = syn::parse_str(text).ok()?;
    Scope::default().evaluate("", &expression, &BTreeMap::new(), 0).ok()
}

impl Scope {
    fn collect(&mut self, module: &str, items: &[Item]) {
        for item in items {
            match item {
                Item::Const(found) if is_integer(&found.ty) => {
                    let path = join(module, &found.ident.to_string());
                    if matches!(found.vis, Visibility::Public(_)) {
                        self.public.push((path.clone(), found.ident.span().start().line));
                    }
                    self.values.insert(path, (*found.expr).clone());
                }
                Item::Fn(found) if found.sig.constness.is_some() => self.collect_function(module, found),
                Item::Enum(found) if matches!(found.vis, Visibility::Public(_)) => {
                    self.collect_enum(module, found)
                }
                Item::Mod(found) if found.ident != "tests" => {
                    let items = found.content.as_ref().map_or(&[][..], |(_, items)| items);
                    self.collect(&join(module, &found.ident.to_string()), items);
                }
                _ => {}
            }
        }
    }

    fn collect_function(&mut self, module: &str, function: &syn::ItemFn) {
        if let [syn::Stmt::Expr(body, None)] = function.block.stmts.as_slice() {
            let name = |input: &syn::FnArg| match input {
                syn::FnArg::Typed(typed) => match &*typed.pat {
                    syn::Pat::Ident(name) => Some(name.ident.to_string()),
                    _ => None,
                },
                syn::FnArg::Receiver(_) => None,
            };
            let inputs = function.sig.inputs.iter().filter_map(name).collect();
            self.functions.insert(join(module, &function.sig.ident.to_string()), (inputs, body.clone()));
        }
    }

    fn collect_enum(&mut self, module: &str, found: &syn::ItemEnum) {
        let module = join(module, &found.ident.to_string());
        for variant in &found.variants {
            if let Some((_, value)) = &variant.discriminant {
                let path = join(&module, &variant.ident.to_string());
                self.public.push((path.clone(), variant.ident.span().start().line));
                self.values.insert(path, value.clone());
            }
        }
    }

    fn evaluate(
        &self,
        module: &str,
        expression: &Expr,
        locals: &BTreeMap<String, i128>,
        depth: u32,
    ) -> Result<i128, String> {
        if depth > MAX_DEPTH {
            return Err("it nests too deeply".into());
        }
        let value = |expression: &Expr| self.evaluate(module, expression, locals, depth + 1);
        match expression {
            Expr::Lit(literal) => literal_value(&literal.lit),
            Expr::Paren(inner) => value(&inner.expr),
            Expr::Group(inner) => value(&inner.expr),
            Expr::Cast(cast) => value(&cast.expr),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => Ok(-value(&unary.expr)?),
            Expr::Binary(binary) => {
                let (left, right) = (value(&binary.left)?, value(&binary.right)?);
                operate(&binary.op, left, right).ok_or_else(|| "its arithmetic does not work out".into())
            }
            Expr::Path(path) => self.named(module, &path_text(&path.path), locals, depth),
            Expr::Call(call) => self.call(module, call, locals, depth),
            _ => Err("it is an expression that tidy does not understand".into()),
        }
    }

    fn named(
        &self,
        module: &str,
        name: &str,
        locals: &BTreeMap<String, i128>,
        depth: u32,
    ) -> Result<i128, String> {
        if let Some(value) = locals.get(name).copied().or_else(|| limit(name)) {
            return Ok(value);
        }
        let (module, value) = look_up(&self.values, module, name)
            .ok_or_else(|| format!("`{name}` is not known in this file"))?;
        self.evaluate(module, value, &BTreeMap::new(), depth + 1)
    }

    fn call(
        &self,
        module: &str,
        call: &syn::ExprCall,
        locals: &BTreeMap<String, i128>,
        depth: u32,
    ) -> Result<i128, String> {
        let Expr::Path(function) = &*call.func else {
            return Err("it calls something without a name".into());
        };
        let name = path_text(&function.path);
        let (home, (inputs, body)) = look_up(&self.functions, module, &name)
            .ok_or_else(|| format!("`{name}()` is not known in this file"))?;
        let mut given = BTreeMap::new();
        for (input, argument) in inputs.iter().zip(&call.args) {
            given.insert(input.clone(), self.evaluate(module, argument, locals, depth + 1)?);
        }
        self.evaluate(home, body, &given, depth + 1)
    }
}

/// Finds a name from the inside out; returns the module where it was found too.
fn look_up<'a, T>(names: &'a BTreeMap<String, T>, module: &'a str, name: &str) -> Option<(&'a str, &'a T)> {
    let mut module = module;
    let mut name = name.trim_start_matches("self::");
    while let Some(rest) = name.strip_prefix("super::") {
        module = module.rsplit_once("::").map_or("", |(outer, _)| outer);
        name = rest;
    }
    loop {
        if let Some((path, found)) = names.get_key_value(&join(module, name)) {
            return Some((path.rsplit_once("::").map_or("", |(home, _)| home), found));
        }
        if module.is_empty() {
            return None;
        }
        module = module.rsplit_once("::").map_or("", |(outer, _)| outer);
    }
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

fn path_text(path: &syn::Path) -> String {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>().join("::")
}

fn is_integer(kind: &syn::Type) -> bool {
    let syn::Type::Path(path) = kind else { return false };
    path.path.get_ident().is_some_and(|name| limit(&format!("{name}::MAX")).is_some())
}

fn limit(name: &str) -> Option<i128> {
    Some(match name {
        "u8::MAX" => u8::MAX.into(),
        "u16::MAX" => u16::MAX.into(),
        "u32::MAX" => u32::MAX.into(),
        "u64::MAX" | "usize::MAX" => u64::MAX.into(),
        "i8::MAX" => i8::MAX.into(),
        "i16::MAX" => i16::MAX.into(),
        "i32::MAX" => i32::MAX.into(),
        "i64::MAX" | "isize::MAX" => i64::MAX.into(),
        "u128::MAX" | "i128::MAX" => i128::MAX,
        _ => return None,
    })
}

fn literal_value(literal: &Lit) -> Result<i128, String> {
    match literal {
        Lit::Int(number) => number.base10_parse().map_err(|error| error.to_string()),
        Lit::Byte(byte) => Ok(byte.value().into()),
        _ => Err("it is no whole number".into()),
    }
}

fn operate(operator: &BinOp, left: i128, right: i128) -> Option<i128> {
    let bits = u32::try_from(right).ok();
    match operator {
        BinOp::Add(_) => left.checked_add(right),
        BinOp::Sub(_) => left.checked_sub(right),
        BinOp::Mul(_) => left.checked_mul(right),
        BinOp::Div(_) => left.checked_div(right),
        BinOp::Rem(_) => left.checked_rem(right),
        BinOp::Shl(_) => left.checked_shl(bits?),
        BinOp::Shr(_) => left.checked_shr(bits?),
        BinOp::BitOr(_) => Some(left | right),
        BinOp::BitAnd(_) => Some(left & right),
        BinOp::BitXor(_) => Some(left ^ right),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<(String, i128)> {
        let constants = public_constants(text).expect("the text is Rust");
        constants.into_iter().map(|found| (found.path, found.value.expect("it has a value"))).collect()
    }

    #[test]
    fn arithmetic_casts_names_and_functions_are_worked_out() {
        let text = r"
            pub const BYTES: u32 = 64 * 1024;
            const HIDDEN: u64 = 1 << 40;
            pub const SHOWN: u64 = HIDDEN | 0b1;
            pub const NAME: &str = 'no number';
            pub mod ioctl {
                pub const TYPE: u32 = b'T' as u32;
                const fn number(direction: u32, nr: u32, bytes: u32) -> u32 { direction << 30 | bytes << 16 | TYPE << 8 | nr }
                pub const GET: u32 = number(2, 7, super::EIGHT);
            }
            const EIGHT: u32 = (10 - 2);
            pub const MOST: u16 = u16::MAX;
            pub enum Kind { Hello = 1, Bye }
            mod tests { pub const NOT_THIS: u8 = 1; }
        "
        .replace('\'', "\"")
        .replace("b\"T\"", "b'T'");
        let expected = [
            ("BYTES", 65_536),
            ("SHOWN", (1 << 40) | 1),
            ("ioctl::TYPE", 84),
            ("ioctl::GET", 0x8008_5407),
            ("MOST", 65_535),
            ("Kind::Hello", 1),
        ];
        assert_eq!(values(&text), expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn what_can_not_be_worked_out_is_said() {
        for text in [
            "pub const A: u32 = A;",
            "pub const A: u32 = elsewhere();",
            "pub const A: u32 = 1 / 0;",
            "pub const A: u32 = if x { 1 } else { 2 };",
        ] {
            let found = public_constants(text).expect("the text is Rust");
            assert!(found[0].value.is_err(), "{text}");
        }
    }

    #[test]
    fn plain_numbers_are_read() {
        assert_eq!(evaluate("0x10"), Some(16));
        assert_eq!(evaluate("64 * 1024"), Some(65_536));
        assert_eq!(evaluate("some words"), None);
    }
}
