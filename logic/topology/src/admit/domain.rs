//! The rules of a domain.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::{Context, entrance, environment, machine, mount, reserve, runs_server, service, volume};
use crate::bounds::*;
use crate::diagnostic::Code;
use crate::file::{self, Command, DomainForm, RestartForm, RootForm};
use crate::look::Found;
use crate::model::{
    Domain, DomainKind, Health, Layer, Limits, LogLimits, Network, NodeChoice, Placement, Program, Ready,
    Resolv, Restart, RestartPolicy, Root, ServiceKind, Signal, Stop,
};
use crate::name::Name;
use crate::read::{At, Field, Span};
use crate::scalar::{Filled, duration_text, inside};
use crate::suggest::quoted;

/// Admits one domain.
pub(super) fn admit(name: At<Name>, form: &At<DomainForm>, cx: &mut Context<'_, '_>) -> Domain {
    let (head, form) = (&form.span, &form.value);
    let kind = form.kind.value().copied().unwrap_or(DomainKind::Container);
    if form.kind.value().is_some() && kind == DomainKind::Process {
        refuse_container_keys(form, cx);
    }
    if kind == DomainKind::Vm {
        machine::refuse_container_keys(form, cx);
    }
    let machine = machine::machine(kind, form, cx);
    let root = root(form, cx);
    let program = program(&name, head, form, &root, cx);
    let (ready, ready_timeout_ms) = ready(kind, form, &program, cx);
    let (services, sockets) = entrance::services(&name, form, cx);
    let resolv = resolv(form, services.iter().any(|mount| mount.stub), cx);
    let volumes = volume::volumes(&name.value, kind, form, cx);
    Domain {
        kind,
        placement: placement(form, cx),
        writable: form.writable.value().copied().unwrap_or(false),
        layer: layer(kind, form, cx),
        userns: userns(kind, form, cx),
        environment: environment::variables(form, cx),
        secrets: secrets(form, cx),
        mounts: mount::mounts(form, cx),
        user: form.user.value().map(|user| user.0.clone()),
        network: network(form),
        hostname: hostname(&name.value, kind, form),
        workdir: workdir(kind, form, &root, cx),
        capabilities: capabilities(form, kind, cx),
        limits: match &machine {
            Some(machine) => machine::limits(machine, form, limits(form), cx),
            None => limits(form),
        },
        machine,
        reserve: reserve::reserve(form, cx),
        restart: restart(form, &program, cx),
        log: log(form),
        stop: stop(kind, form),
        after: cx.domains_called(&form.after),
        name: name.value,
        root,
        program,
        services,
        nine_p: form.nine_p.value().copied().unwrap_or(false),
        sockets,
        published: Vec::new(),
        volumes,
        resolv,
        ready,
        ready_timeout_ms,
        health: health(form, cx),
    }
}

/// Returns the network that a domain sees, with the default of its kind.
pub(super) fn network(form: &DomainForm) -> Network {
    let process = form.kind.value() == Some(&DomainKind::Process);
    let default = if process { Network::Host } else { Network::None };
    form.network.value().copied().unwrap_or(default)
}

/// A process shares the node's files, network and names: keys about its own ones would promise what
/// is not so.
fn refuse_container_keys(form: &DomainForm, cx: &mut Context<'_, '_>) {
    let own_root = form.root.given().filter(|at| !matches!(at.value, RootForm::Host)).map(|at| &at.span);
    let own_network = form.network.given().filter(|at| at.value == Network::None).map(|at| &at.span);
    let keys: [(Option<&Span>, &str); 7] = [
        (own_root, "sees the node's own file tree"),
        (form.writable.given().filter(|at| at.value).map(|at| &at.span), "sees the node's own file tree"),
        (form.layer.given().map(|at| &at.span), "sees the node's own file tree"),
        (form.mounts.given().map(|at| &at.span), "sees the node's own file tree"),
        (own_network, "shares the node's network"),
        (form.hostname.given().map(|at| &at.span), "shares the node's host name"),
        (form.userns.given().filter(|at| at.value).map(|at| &at.span), "is one of the node's own users"),
    ];
    for (span, why) in keys {
        if let Some(span) = span {
            cx.out
                .error(Code::WrongKind, span, format!("this can't be for a process domain, which {why}"))
                .help("leave it out, or take kind = \"container\"");
        }
    }
}

fn root(form: &DomainForm, cx: &mut Context<'_, '_>) -> Root {
    let Field::Given(at) = &form.root else {
        refuse_writable_host(form, cx);
        return Root::Host;
    };
    match &at.value {
        RootForm::Host => {
            refuse_writable_host(form, cx);
            Root::Host
        }
        RootForm::Directory(path) => {
            let absolute = file::on_node(cx.base, &path.value.0);
            cx.must_be_there(&absolute, &path.span, &[Found::Directory], "directory");
            if absolute == std::path::Path::new("/") {
                cx.out
                    .error(Code::BadPath, &path.span, "the node's own root can't be a domain's root")
                    .help("root = \"host\" is a read-only view of the node's system directories");
            }
            Root::Directory { path: absolute }
        }
        RootForm::Image(path, None) if is_reference(&path.value.0) => pulled(path, cx),
        RootForm::Image(path, tag) => {
            let absolute = file::on_node(cx.base, &path.value.0);
            cx.must_be_there(&absolute, &path.span, &[Found::Directory, Found::File], "image layout");
            Root::Image { path: absolute, tag: tag.as_ref().map(|tag| tag.value.0.clone()) }
        }
    }
}

/// Whether a text is the name of an image rather than a path: it has a tag or a digest, and does
/// not begin as a path does.
fn is_reference(text: &str) -> bool {
    let last = text.rsplit('/').next().unwrap_or(text);
    !text.starts_with(['/', '.']) && last.contains([':', '@'])
}

/// An image of the node's store. Its digest is settled once and for all nodes: where the file is
/// admitted.
fn pulled(name: &At<Filled>, cx: &mut Context<'_, '_>) -> Root {
    let reference = name.value.0.clone();
    let digest = cx.node.image(&reference).unwrap_or_else(|lack| {
        let error = cx.out.error(Code::NotFound, &name.span, lack.message);
        if let Some(help) = lack.help {
            error.help(help);
        }
        None
    });
    Root::Pulled { reference, digest }
}

fn refuse_writable_host(form: &DomainForm, cx: &mut Context<'_, '_>) {
    // Of the other kinds it is refused for what they are.
    let container = form.kind.value().is_none_or(|kind| *kind == DomainKind::Container);
    if let Field::Given(at) = &form.writable
        && at.value
        && container
        && !form.root.is_broken()
    {
        cx.out
            .error(
                Code::Conflict,
                &at.span,
                "the root \"host\" is made of the node's own system directories: nobody writes there",
            )
            .help("take a directory or an image as root, or a mount with read_only = false");
    }
}

/// The bounds of its layer, where it has one.
fn layer(kind: DomainKind, form: &DomainForm, cx: &mut Context<'_, '_>) -> Option<Layer> {
    let writable = form.writable.value().copied().unwrap_or(false);
    // Of the other kinds it is refused for what they are.
    if let Some(at) = form.layer.given()
        && kind == DomainKind::Container
        && !writable
        && !form.writable.is_broken()
    {
        cx.out
            .error(Code::Conflict, &at.span, "a read-only root has no layer: nothing is written to it")
            .help("add writable = true, or leave it out");
    }
    let layer = form.layer.value();
    writable.then(|| Layer {
        size_bytes: layer.and_then(|layer| layer.size.value()).map_or(LAYER_BYTES_DEFAULT, |size| size.0),
        inodes: layer.and_then(|layer| layer.inodes.value()).map_or(LAYER_INODES_DEFAULT, |count| count.0),
    })
}

/// Whether it has a user namespace of its own. Of the node's network it can't be: the kernel lets
/// nobody look after both.
fn userns(kind: DomainKind, form: &DomainForm, cx: &mut Context<'_, '_>) -> bool {
    let Some(at) = form.userns.given().filter(|at| at.value) else { return false };
    // Of the other kinds it is refused for what they are.
    if kind == DomainKind::Container && network(form) == Network::Host {
        cx.out
            .error(
                Code::Conflict,
                &at.span,
                "a container with the node's network can't have a user namespace of its own",
            )
            .help("leave it out, or take network = \"none\"");
    }
    kind == DomainKind::Container
}

/// Returns the program: a command, the server of the services that the domain hosts, or the image's
/// own.
fn program(
    name: &At<Name>,
    head: &Span,
    form: &DomainForm,
    root: &Root,
    cx: &mut Context<'_, '_>,
) -> Program {
    let hosted = cx.served_by(&name.value);
    match (&form.command, hosted.first()) {
        (Field::Given(command), Some(service)) => {
            let message =
                format!("`{}` runs the server of `{service}`, so it can't run a command as well", name.value);
            cx.out.error(Code::Conflict, &command.span, message).help(
                "a domain has one program: leave `command` out, or give the service a domain of its own",
            );
            Program::Image
        }
        (Field::Given(command), None) => Program::Command(argv(command, cx)),
        (Field::Broken, _) => Program::Image,
        (Field::Absent, Some(_)) => {
            let mut names: Vec<Name> = hosted.iter().filter_map(|name| Name::parse(name).ok()).collect();
            names.sort();
            Program::Server(names)
        }
        (Field::Absent, None) if form.kind.value() == Some(&DomainKind::Vm) => Program::Nothing,
        (Field::Absent, None) => {
            if !root.is_image() && !form.root.is_broken() && !cx.form.service.is_broken() {
                refuse_nothing(name, head, cx);
            }
            Program::Image
        }
    }
}

fn refuse_nothing(name: &At<Name>, head: &Span, cx: &mut Context<'_, '_>) {
    let (why, help) = match cx.offered_by(&name.value).first() {
        Some((ServiceKind::Socket, socket)) => (
            format!("no command, and a program of its own would have to listen for `{socket}`"),
            "add command = [\"program\", \"argument\"]",
        ),
        Some((ServiceKind::Channel, channel)) => (
            format!("no command, and the channel `{channel}` is offered by a program of its own"),
            "add command = [\"program\", \"argument\"]",
        ),
        Some((_, service)) => (
            format!("no command, and the service `{service}` is offered by a program of its own"),
            "add command = [\"program\", \"argument\"]",
        ),
        None => (
            "no command, and it hosts no service".to_owned(),
            "add command = [\"program\", \"argument\"], or name it in a service: domain = \"...\"",
        ),
    };
    let message = format!("`{}` has nothing to run: {why}", name.value);
    cx.out.error(Code::NothingToRun, head, message).help(help);
}

/// A command that names a program.
pub(super) fn argv(command: &At<Command>, cx: &mut Context<'_, '_>) -> Vec<String> {
    let argv: Vec<String> = command.value.0.iter().map(|item| item.value.0.clone()).collect();
    match argv.first() {
        None => {
            cx.out
                .error(Code::TooFew, &command.span, "an empty command runs nothing")
                .help("[\"program\", \"argument\"]");
        }
        Some(program) if program.is_empty() => {
            cx.out.error(Code::BadText, &command.span, "the program of a command can't be empty");
        }
        Some(program) if argv.len() == 1 && program.contains(' ') && !program.contains('/') => {
            let words: Vec<String> = program.split_whitespace().map(|word| format!("\"{word}\"")).collect();
            cx.out
                .error(
                    Code::BadText,
                    &command.span,
                    "a command is no shell line: each word is a text of its own",
                )
                .help(format!("did you mean [{}]?", words.join(", ")));
        }
        Some(_) => {}
    }
    argv
}

fn hostname(name: &Name, kind: DomainKind, form: &DomainForm) -> Option<String> {
    let own = kind != DomainKind::Process;
    own.then(|| form.hostname.value().map_or_else(|| name.to_string(), |hostname| hostname.0.clone()))
}

fn workdir(kind: DomainKind, form: &DomainForm, root: &Root, cx: &mut Context<'_, '_>) -> Option<PathBuf> {
    match (&form.workdir, kind) {
        (Field::Given(at), DomainKind::Container | DomainKind::Vm) => {
            inside(&at.value.0, &at.span, &mut cx.out)
        }
        (Field::Given(at), DomainKind::Process) => {
            let path = file::on_node(cx.base, &at.value.0);
            cx.must_be_there(&path, &at.span, &[Found::Directory], "directory");
            Some(path)
        }
        (_, DomainKind::Process) => Some(cx.base.to_owned()),
        (_, DomainKind::Container) if root.is_image() => None,
        (_, DomainKind::Container | DomainKind::Vm) => Some(PathBuf::from("/")),
    }
}

fn secrets(form: &DomainForm, cx: &mut Context<'_, '_>) -> Vec<String> {
    let mut names = BTreeSet::new();
    for item in form.secrets.value().map_or(&[][..], |items| items.0.as_slice()) {
        if !names.insert(item.value.0.clone()) {
            cx.out.error(Code::Duplicate, &item.span, format!("{} is said twice", quoted(&item.value.0)));
        }
    }
    names.into_iter().collect()
}

/// Capabilities with which a program can leave its container or take the node down.
const UNDOING: &[&str] =
    &["BPF", "DAC_READ_SEARCH", "MAC_ADMIN", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_RAWIO"];

fn capabilities(form: &DomainForm, kind: DomainKind, cx: &mut Context<'_, '_>) -> Vec<String> {
    let mut names = BTreeSet::new();
    for item in form.capabilities.value().map_or(&[][..], |items| items.0.as_slice()) {
        let bare = item.value.0;
        if UNDOING.contains(&bare) && kind == DomainKind::Container {
            let message = format!("with {} a program can leave its container", quoted(bare));
            cx.out
                .error(Code::BadCapability, &item.span, message)
                .help("what needs it is no container: take kind = \"process\"");
        }
        if !names.insert(format!("CAP_{bare}")) {
            cx.out.error(Code::Duplicate, &item.span, format!("{} is said twice", quoted(bare)));
        }
    }
    names.into_iter().collect()
}

fn limits(form: &DomainForm) -> Limits {
    let limits = form.limits.value();
    Limits {
        cpu_milli: limits.and_then(|limits| limits.cpu.value()).map(|cpu| cpu.0),
        memory_bytes: limits.and_then(|limits| limits.memory.value()).map(|memory| memory.0),
        pids: limits.and_then(|limits| limits.pids.value()).map_or(PIDS_DEFAULT, |pids| pids.0),
    }
}

fn restart(form: &DomainForm, program: &Program, cx: &mut Context<'_, '_>) -> Restart {
    let server = runs_server(program);
    let default = if server { RestartPolicy::Always } else { RestartPolicy::OnFailure };
    let Some(restart) = form.restart.value() else {
        return Restart {
            policy: default,
            backoff_ms: BACKOFF_MS_DEFAULT,
            max_backoff_ms: MAX_BACKOFF_MS_DEFAULT,
            max_retries: None,
            elsewhere: false,
        };
    };
    let policy = restart.policy.value().copied().unwrap_or(default);
    if policy == RestartPolicy::Never && !restart.policy.is_broken() {
        refuse_silent_backoff(restart, cx);
    }
    let backoff_ms = restart.backoff.value().map_or(BACKOFF_MS_DEFAULT, |millis| millis.0);
    // A first pause beyond the usual bound moves the bound, unless the file says one.
    let usual = MAX_BACKOFF_MS_DEFAULT.max(backoff_ms);
    let max_backoff_ms = restart.max_backoff.value().map_or(usual, |millis| millis.0);
    if let Field::Given(max) = &restart.max_backoff
        && backoff_ms > max_backoff_ms
    {
        let message =
            format!("the longest pause is shorter than the first one, {}", duration_text(backoff_ms));
        cx.out
            .error(Code::Conflict, &max.span, message)
            .help(format!("take at least \"{}\", or a shorter `backoff`", duration_text(backoff_ms)));
    }
    Restart {
        policy,
        backoff_ms,
        max_backoff_ms,
        max_retries: restart.max_retries.value().map(|count| count.0),
        elsewhere: restart.elsewhere.value().copied().unwrap_or(false),
    }
}

/// Pauses before restarts that never happen say that something else was meant.
fn refuse_silent_backoff(restart: &RestartForm, cx: &mut Context<'_, '_>) {
    let spans = [
        restart.backoff.given().map(|at| &at.span),
        restart.max_backoff.given().map(|at| &at.span),
        restart.max_retries.given().map(|at| &at.span),
        restart.elsewhere.given().filter(|at| at.value).map(|at| &at.span),
    ];
    if let Some(span) = spans.into_iter().flatten().next() {
        cx.out
            .error(Code::Conflict, span, "with policy = \"never\" there is no restart that this could be for")
            .help("leave it out, or take policy = \"on-failure\"");
    }
}

/// On which node it may run.
fn placement(form: &DomainForm, cx: &mut Context<'_, '_>) -> Placement {
    let node = form.node.value().cloned().unwrap_or_default();
    let elsewhere = form.restart.value().and_then(|restart| restart.elsewhere.given());
    if let (NodeChoice::Named(name), Some(at)) = (&node, elsewhere)
        && at.value
    {
        let message = format!("it runs on {name} alone: there is no other node to start it on");
        cx.out
            .error(Code::Conflict, &at.span, message)
            .help("take node = \"any\", with `labels` if not every node will do; or leave `elsewhere` out");
    }
    let mut labels = BTreeMap::new();
    for entry in form.labels.value().map_or(&[][..], |labels| labels.0.as_slice()) {
        if let Some(name) = file::check_name(&entry.key.value, &entry.key.span, &mut cx.out)
            && let Some(at) = &entry.value
        {
            labels.insert(name.as_str().to_owned(), at.value.0.clone());
        }
    }
    Placement { node, labels }
}

fn log(form: &DomainForm) -> LogLimits {
    let log = form.log.value();
    LogLimits {
        max_bytes: log.and_then(|log| log.max_size.value()).map_or(LOG_BYTES_DEFAULT, |size| size.0),
        files: log.and_then(|log| log.files.value()).map_or(LOG_FILES_DEFAULT, |count| count.0),
    }
}

fn stop(kind: DomainKind, form: &DomainForm) -> Stop {
    let default = if kind == DomainKind::Vm { MACHINE_STOP_MS_DEFAULT } else { STOP_MS_DEFAULT };
    let stop = form.stop.value();
    Stop {
        signal: stop.and_then(|stop| stop.signal.value()).copied().unwrap_or(Signal::Term),
        timeout_ms: stop.and_then(|stop| stop.timeout.value()).map_or(default, |millis| millis.0),
    }
}

fn resolv(form: &DomainForm, has_stub: bool, cx: &mut Context<'_, '_>) -> Resolv {
    let resolv = form.resolv.value();
    if let Field::Given(at) = &form.resolv
        && !has_stub
        && !form.services.is_broken()
        && !form.network.is_broken()
    {
        cx.out
            .error(Code::Conflict, &at.span, "`resolv` is for the stub's resolv.conf, and this domain has no stub")
            .help("mount a directory service with stub = true in a domain with network = \"none\", or leave it out");
    }
    Resolv {
        search: resolv.map_or_else(Vec::new, |resolv| service::suffixes(&resolv.search, cx)),
        ndots: resolv
            .and_then(|resolv| resolv.ndots.value())
            .map_or(1, |count| u8::try_from(count.0).unwrap_or(1)),
    }
}

/// How it is known that the domain still does what it should.
fn health(form: &DomainForm, cx: &mut Context<'_, '_>) -> Option<Health> {
    let health = form.health.value()?;
    let command = health.command.given().map(|command| argv(command, cx)).unwrap_or_default();
    Some(Health {
        command,
        every_ms: health.every.value().map_or(HEALTH_EVERY_MS_DEFAULT, |millis| millis.0),
        timeout_ms: health.timeout.value().map_or(HEALTH_TIMEOUT_MS_DEFAULT, |millis| millis.0),
        fails: health.fails.value().map_or(HEALTH_FAILS_DEFAULT, |count| count.0),
    })
}

/// How `up` knows that the domain is up, and how long it waits.
fn ready(kind: DomainKind, form: &DomainForm, program: &Program, cx: &mut Context<'_, '_>) -> (Ready, u64) {
    let vm = kind == DomainKind::Vm;
    let default_ms = if vm { MACHINE_READY_MS_DEFAULT } else { READY_MS_DEFAULT };
    let default = if runs_server(program) { Ready::Registered } else { Ready::Started };
    let Field::Given(at) = &form.ready else { return (default, default_ms) };
    let ready = &at.value;
    let timeout_ms = ready.timeout.value().map_or(default_ms, |millis| millis.0);
    let asked = match (&ready.tcp, &ready.command) {
        (Field::Given(_), Field::Given(command)) => {
            cx.out.error(
                Code::Conflict,
                &command.span,
                "readiness is asked for by `tcp` or by `command`, not by both",
            );
            None
        }
        (Field::Given(tcp), _) => {
            if network(form) == Network::None && !vm && !form.network.is_broken() && !form.kind.is_broken() {
                cx.out
                    .error(Code::NoNetwork, &tcp.span, "nobody can connect to a domain that has only `lo`")
                    .help("ask inside the domain: ready = { command = [\"test\", \"-e\", \"/tmp/up\"] }");
            }
            Some(Ready::Tcp(tcp.value.0))
        }
        (_, Field::Given(command)) => Some(Ready::Command(argv(command, cx))),
        (Field::Absent, Field::Absent) => {
            // A machine takes its time to boot: `timeout` alone says something of it.
            let boots = vm && !ready.timeout.is_absent();
            if !runs_server(program) && !boots {
                cx.out
                    .error(Code::MissingKey, &at.span, "readiness is asked for by `tcp` or by `command`")
                    .help("ready = { tcp = \"127.0.0.1:8080\" } or ready = { command = [\"program\"] }");
            }
            None
        }
        _ => None,
    };
    if asked.is_some() && runs_server(program) {
        cx.out
            .error(
                Code::Conflict,
                &at.span,
                "a server is ready when it has registered its services; nothing else is asked",
            )
            .help("leave `tcp` and `command` out; `timeout` can stay");
    }
    (asked.unwrap_or(default), timeout_ms)
}
