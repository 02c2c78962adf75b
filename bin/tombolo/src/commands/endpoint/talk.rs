//! Inside a domain: an endpoint for as long as the command takes.

use super::payload::Payloads;
use super::print::{self, Form, Source, remark};
use super::{CallArgs, PayloadArgs, ReceiveArgs, SendArgs};
use ::endpoint::{Address, Content, Endpoint, From, Options, Received, Whom};
use std::time::{Duration, Instant};
use terminal::Failure;

/// `tombolo endpoint send`.
pub fn send(arguments: &SendArgs) -> Result<(), Failure> {
    let payload = &arguments.payload;
    if let Some(bits) = arguments.notify {
        let (mut endpoint, to) = start(arguments.who.name.as_deref(), &arguments.to, payload)?;
        endpoint.notify(to, bits).map_err(failed)?;
        return end(endpoint);
    }
    // What can't be read is found out before anybody is called.
    let payloads = Payloads::of(payload)?;
    let (mut endpoint, to) = start(arguments.who.name.as_deref(), &arguments.to, payload)?;
    for bytes in payloads {
        let (bytes, deadline) = (bytes?, by(payload.timeout));
        if arguments.buffered {
            endpoint.send_buffered(to, payload.tag, &bytes, deadline).map_err(failed)?;
        } else {
            endpoint.send(to, payload.tag, &bytes, deadline).map_err(failed)?;
        }
    }
    end(endpoint)
}

/// `tombolo endpoint call`.
pub fn call(arguments: &CallArgs) -> Result<(), Failure> {
    let payload = &arguments.payload;
    let payloads = Payloads::of(payload)?;
    let (mut endpoint, to) = start(arguments.who.name.as_deref(), &arguments.to, payload)?;
    let form = Form::of(arguments.raw, arguments.json);
    let mut answer = Vec::new();
    for bytes in payloads {
        let deadline = by(payload.timeout);
        let reply = endpoint
            .send_receive(to, payload.tag, &bytes?, &mut answer, arguments.takes, deadline)
            .map_err(failed)?;
        let source = source(&endpoint, reply.source);
        if form == Form::Json {
            print::line(&print::object("reply", &source, reply.tag, &answer))?;
            continue;
        }
        if reply.source != to {
            remark(&format!("{} answered, to whom the request was passed on", source.text()));
        }
        print::payload(&answer, form)?;
    }
    end(endpoint)
}

/// `tombolo endpoint receive`.
pub fn receive(arguments: &ReceiveArgs) -> Result<(), Failure> {
    let mut endpoint = bind(Some(&arguments.name))?;
    let from = match &arguments.from {
        Some(from) => From::One(find(&mut endpoint, from, arguments.timeout.or(Some(Duration::MAX)))?),
        None => From::Any,
    };
    let form = Form::of(arguments.raw, arguments.json);
    let mut bytes = Vec::new();
    let mut left = if arguments.follow { u64::MAX } else { arguments.count };
    while left > 0 {
        let deadline = arguments.timeout.and_then(by);
        let received = endpoint.receive(&from, &mut bytes, deadline).map_err(failed)?;
        let answered = answer(&mut endpoint, arguments, &received, &bytes)?;
        show(&endpoint, &received, &bytes, form, answered)?;
        left -= 1;
    }
    end(endpoint)
}

/// Replies to a request as the arguments say; whether it did.
fn answer(
    endpoint: &mut Endpoint,
    arguments: &ReceiveArgs,
    received: &Received,
    request: &[u8],
) -> Result<bool, Failure> {
    let Content::Request { tag, asked } = &received.content else { return Ok(false) };
    let reply = match &arguments.reply {
        Some(text) => text.as_bytes(),
        None if arguments.echo => request,
        None => return Ok(false),
    };
    match endpoint.reply(asked, *tag, reply) {
        Ok(()) => Ok(true),
        // That one requester does not wait any more, or takes less, is no reason to leave the
        // others.
        Err(::endpoint::Failed::Call(error)) => {
            remark(&format!("not answered: {error}"));
            Ok(false)
        }
        Err(other) => Err(failed(other)),
    }
}

/// Prints what was received, and from whom it is.
fn show(
    endpoint: &Endpoint,
    received: &Received,
    bytes: &[u8],
    form: Form,
    answered: bool,
) -> Result<(), Failure> {
    let source = source(endpoint, received.source);
    match &received.content {
        Content::Message { tag } => match form {
            Form::Json => print::line(&print::object("message", &source, *tag, bytes)),
            _ => print::said("message", &source, *tag, bytes, form),
        },
        Content::Request { tag, .. } if form == Form::Json => {
            let mut object = print::object("request", &source, *tag, bytes);
            object["answered"] = answered.into();
            print::line(&object)
        }
        Content::Request { tag, .. } => {
            print::said(if answered { "request" } else { "unanswered request" }, &source, *tag, bytes, form)
        }
        Content::Notices(bits) => print::notices(&source, *bits, form),
    }
}

/// An endpoint, and who is called.
fn start(name: Option<&str>, to: &str, payload: &PayloadArgs) -> Result<(Endpoint, Address), Failure> {
    let mut endpoint = bind(name)?;
    let to = find(&mut endpoint, to, payload.wait)?;
    Ok((endpoint, to))
}

fn bind(name: Option<&str>) -> Result<Endpoint, Failure> {
    Endpoint::bind(name, &Options::default()).map_err(failed)
}

/// Introduces the endpoint to another one; waits for it where a time is said.
fn find(endpoint: &mut Endpoint, whom: &str, wait: Option<Duration>) -> Result<Address, Failure> {
    let whom = match whom.parse::<Address>() {
        Ok(address) => Whom::Address(address),
        Err(_) => Whom::Name(whom),
    };
    match wait {
        Some(time) => endpoint.wait_for_bind(whom, by(time)).map_err(failed),
        None => endpoint.find(whom, None).map_err(failed),
    }
}

fn end(mut endpoint: Endpoint) -> Result<(), Failure> {
    endpoint.flush().map_err(failed)?;
    endpoint.unbind().map_err(failed)
}

fn source(endpoint: &Endpoint, address: Address) -> Source {
    let peer = endpoint.peer(address);
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    Source {
        address: address.to_string(),
        name: text(peer.as_ref().and_then(|peer| peer.name)),
        domain: text(peer.as_ref().and_then(|peer| peer.domain)),
    }
}

/// When a time that begins now is over; never, where it is longer than the clock.
fn by(time: Duration) -> Option<Instant> {
    Instant::now().checked_add(time)
}

/// Makes a failure of an error with its causes.
fn failed(error: impl std::error::Error) -> Failure {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = error.source();
    }
    Failure::new(text)
}
