//! Filters that the topology file gives to the subscriptions of a domain: nothing that the domain
//! says changes them.

use crate::library::{Bytes, name_of};
use crate::names::number_of;
use publication::Filter;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use wire::events::module::BYTES_MAX;
use wire::events::{GivenJudge, Settings};

/// The filter of a domain's subscriptions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Given {
    Filter(Filter),
    /// A module, by its name.
    Module {
        name: String,
        bytes: Bytes,
    },
    /// It can't be had, and so neither can the subscription.
    Broken(String),
}

/// By the channel's name and the domain's number.
pub(crate) type GivenFilters = HashMap<(Vec<u8>, u64), Given>;

/// The filters of these settings; the files of modules are read.
pub(crate) fn given_of(settings: &Settings) -> GivenFilters {
    let of_channel = |channel: &wire::events::NamedChannel| {
        let name = channel.name.clone().into_bytes();
        let subscribers = channel.subscribers.clone().into_iter();
        subscribers.map(move |it| ((name.clone(), number_of(it.domain.as_bytes()).max(1)), given(it.judge)))
    };
    settings.channels.iter().flat_map(of_channel).collect()
}

fn given(judge: GivenJudge) -> Given {
    match judge {
        GivenJudge::Filter(text) => match Filter::parse(&text) {
            Ok(filter) => Given::Filter(filter),
            Err(error) => broken(format!("the filter of the topology file is none: {error}")),
        },
        GivenJudge::Module(path) => match read(&path) {
            Ok(bytes) => Given::Module { name: name_of(&bytes), bytes: bytes.into() },
            Err(why) => broken(format!("the module {path} of the topology file can't be had: {why}")),
        },
    }
}

fn broken(why: String) -> Given {
    tracing::error!("{why}");
    Given::Broken(why)
}

/// The bytes of a regular file that is not too long. A pipe in its place would not be waited for.
fn read(path: &str) -> Result<Vec<u8>, String> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let opened = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path);
    let file = opened.map_err(|error| error.to_string())?;
    if !file.metadata().map_err(|error| error.to_string())?.is_file() {
        return Err("it is no file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > BYTES_MAX {
        return Err(format!("it is longer than the {BYTES_MAX} bytes that one may have"));
    }
    Ok(bytes)
}
