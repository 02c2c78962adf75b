//! Lacks of the node for a domain that is right by its words: reported at the place in the file.

use super::Context;
use crate::diagnostic::Code;
use crate::file::{DomainForm, RootForm};
use crate::look::Part;
use crate::model::Domain;
use crate::read::Span;

/// Refuses what the node lacks. Where the file is wrong by its words, that is to be mended first:
/// what is looked for follows from it.
pub(super) fn refuse(domains: &[Domain], cx: &mut Context<'_, '_>) {
    if !cx.out.is_clean() {
        return;
    }
    for domain in domains {
        for lack in cx.node.lacks(domain) {
            let Some(form) = cx.domain_form(&domain.name) else { continue };
            let span = span(form, lack.part).or_else(|| head(domain, cx)).unwrap_or(0..0);
            let error = cx.out.error(Code::NotFound, &span, lack.message);
            if let Some(help) = lack.help {
                error.help(help);
            }
        }
    }
}

/// Where the file says that part, or that from which it follows.
fn span(form: &DomainForm, part: Part) -> Option<Span> {
    let root = || {
        let at = form.root.given()?;
        Some(match &at.value {
            RootForm::Host => at.span.clone(),
            RootForm::Directory(path) | RootForm::Image(path, _) => path.span.clone(),
        })
    };
    let own = match part {
        Part::Root => None,
        Part::Tag => form.root.given().and_then(|at| match &at.value {
            RootForm::Image(_, Some(tag)) => Some(tag.span.clone()),
            _ => None,
        }),
        Part::User => form.user.given().map(|at| at.span.clone()),
        Part::Command => form.command.given().and_then(|at| Some(at.value.0.first()?.span.clone())),
        Part::Ready => {
            let command = form.ready.value().and_then(|ready| ready.command.given());
            command.and_then(|at| Some(at.value.0.first()?.span.clone()))
        }
        Part::Health => {
            let command = form.health.value().and_then(|health| health.command.given());
            command.and_then(|at| Some(at.value.0.first()?.span.clone()))
        }
        Part::Mount(index) => {
            let mount = form.mounts.value().and_then(|items| items.0.get(index));
            mount.and_then(|mount| mount.value.target.given()).map(|at| at.span.clone())
        }
    };
    own.or_else(root)
}

/// Where the domain begins in the file.
fn head(domain: &Domain, cx: &Context<'_, '_>) -> Option<Span> {
    let entry = cx.form.domain.value()?.get(&domain.name)?;
    Some(entry.key.span.clone())
}
