//! The values of a file that have a form of their own: words, roots, users, names.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::json;
use toml::de::{DeTable, DeValue};

use super::{
    CamerasForm, ChannelForm, CoordinationForm, DirectoryForm, EventsForm, FilesForm, LocationForm,
    ProgramForm, PublishForm, ServiceAtForm, SocketForm, TargetForm,
};
use crate::bounds::{DOMAINS_MAX, FRAME_SIDE_MAX, FRAME_SIDE_MIN, LABEL_BYTES_MAX, LOGIN_BYTES_MAX};
use crate::diagnostic::{Code, Report};
use crate::model::{
    Accel, ChannelMode, DiskFormat, DiskHolds, DomainKind, EndpointVerb, Enforce, FrameFormat, IdOrName,
    JobPolicy, LocationKind, MonitorWord, Network, NetworkClass, NodeChoice, Outside, RestartPolicy,
    ServiceKind, Signal, User, Verb, VolumeStore,
};
use crate::name::{NAME_PATTERN, Name};
use crate::read::{At, Beside, Field, Form, Items, Span, field, required, table_form, type_name, wrong_type};
use crate::scalar::{Filled, inline_schema, text, word, words};
use crate::suggest::{self, quoted};

impl Form for Name {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = text(value, "a name, a string", span, out)?;
        check_name(read, span, out)
    }
}

inline_schema!(Name, |_generator| json_schema!({ "type": "string", "pattern": NAME_PATTERN }));

/// Checks a name that stands as a value or as a key.
pub(crate) fn check_name(text: &str, span: &Span, out: &mut Report<'_>) -> Option<Name> {
    match Name::parse(text) {
        Ok(name) => Some(name),
        Err(error) => {
            let help = likely_name(text).map(|name| format!("did you mean `{name}`?"));
            let diagnostic =
                out.error(Code::BadName, span, format!("{} can't be a name: {error}", quoted(text)));
            diagnostic.help = help;
            None
        }
    }
}

/// The name that somebody may have meant who wrote something like one.
fn likely_name(text: &str) -> Option<Name> {
    let likely: String = text
        .chars()
        .map(|c| if matches!(c, '_' | ' ' | '.') { '-' } else { c.to_ascii_lowercase() })
        .take(crate::name::NAME_BYTES_MAX)
        .collect();
    Name::parse(likely.trim_end_matches('-')).ok()
}

words!(DomainKind, "kind of domain" {
    "process" => DomainKind::Process,
        "A process of the node with a mount namespace and a cgroup of its own; it shares the node's files and network.";
    "container" => DomainKind::Container, "An OCI container with namespaces of its own.";
    "vm" => DomainKind::Vm, "A virtual machine under QEMU, with a kernel of its own.";
});

words!(Accel, "accelerator" {
    "auto" => Accel::Auto, "KVM where it works, emulation otherwise; `tombolo ps` says which.";
    "kvm" => Accel::Kvm, "KVM, or the domain does not start.";
    "tcg" => Accel::Tcg, "Emulation.";
});

words!(DiskFormat, "format of a disk" {
    "raw" => DiskFormat::Raw, "The sectors, one after the other.";
    "qcow2" => DiskFormat::Qcow2, "QEMU's own format.";
});

words!(VolumeStore, "store of a volume" {
    "file" => VolumeStore::File, "A file in the node's state directory: it survives a reboot.";
    "memory" => VolumeStore::Memory, "A file in the node's run directory, which has to be in memory: gone after a reboot.";
});

words!(DiskHolds, "content of a disk" {
    "root" => DiskHolds::Root, "An ext4 file system without partitions, which the command and `tombolo exec` see as /.";
    "system" => DiskHolds::System, "A whole system that starts `tombolo agent` by itself; it boots by its own boot loader where no kernel is given.";
    "data" => DiskHolds::Data, "Something else: the guest finds it at /dev/vda.";
});

words!(Network, "network" {
    "none" => Network::None, "A network namespace of its own that has only lo.";
    "host" => Network::Host, "The node's network.";
});

words!(Enforce, "enforcement" {
    "auto" => Enforce::Auto, "What suits the node and the domain; `tombolo reserve explain` says which, and why.";
    "bandwidth" => Enforce::Bandwidth, "The kernel's own quota for a cgroup.";
    "table" => Enforce::Table, "A dispatch table, worked out in advance.";
    "deadline" => Enforce::Deadline, "The kernel's deadline class, for each thread.";
});

words!(JobPolicy, "policy for jobs" {
    "round-robin" => JobPolicy::RoundRobin, "Each of its processes in turn; nothing is promised to any by name.";
    "rate-monotonic" => JobPolicy::RateMonotonic, "The shorter a job's period, the sooner it runs.";
    "deadline-monotonic" => JobPolicy::DeadlineMonotonic, "The shorter a job's deadline, the sooner it runs.";
    "earliest-deadline" => JobPolicy::EarliestDeadline, "Whose deadline comes next.";
});

words!(Outside, "behaviour outside of a budget" {
    "held" => Outside::Held, "They wait: the budget is also the most that they get.";
    "idle" => Outside::Idle, "They take what nobody wants.";
    "fair" => Outside::Fair, "They compete like everybody else.";
});

words!(MonitorWord, "monitor" {
    "quality" => MonitorWord::Quality, "The figure that the domain's program writes to /srv/self/quality.";
    "misses" => MonitorWord::Misses, "Periods in which it wanted more than its budget, or late slots of its table, in percent.";
    "cpu-pressure" => MonitorWord::CpuPressure, "The time that its processes waited for a processor, in percent.";
    "memory-pressure" => MonitorWord::MemoryPressure, "The time that its processes waited for memory, in percent.";
    "io-pressure" => MonitorWord::IoPressure, "The time that its processes waited for a disk, in percent.";
    "latency" => MonitorWord::Latency, "The mean time that a request to a service took, in milliseconds.";
    "jitter" => MonitorWord::Jitter, "The mean difference between the time of one request to a service and that of the next, in milliseconds.";
    "rate" => MonitorWord::Rate, "Requests to a service in a second.";
    "targets" => MonitorWord::Targets, "The use of the targets that the domain asks of a service, in percent: 100 is just kept.";
    "loss" => MonitorWord::Loss, "Packets of its class of the link that found no room in the queue, in percent.";
    "queue" => MonitorWord::Queue, "The time until what waits in its class of the link has gone out, in milliseconds.";
});

words!(NetworkClass, "class of the network" {
    "gold" => NetworkClass::Gold, "Before all others.";
    "silver" => NetworkClass::Silver, "After gold.";
    "best-effort" => NetworkClass::BestEffort, "After the others.";
});

impl Form for NodeChoice {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = text(value, "a node's name, \"any\" or \"spread\"", span, out)?;
        match read {
            "any" => Some(Self::Any),
            "spread" => Some(Self::Spread),
            name => check_name(name, span, out).map(Self::Named),
        }
    }
}

inline_schema!(NodeChoice, |_generator| json_schema!({ "type": "string", "pattern": NAME_PATTERN }));

/// The value of a label: letters, digits, `-`, `_` and `.`.
#[derive(Clone, Debug)]
pub(crate) struct Label(pub(crate) String);

/// The pattern of a label's value.
const LABEL_PATTERN: &str = "^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$";

impl Form for Label {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = text(value, "what the label says, a string", span, out)?;
        if is_label_value(read) {
            return Some(Self(read.to_owned()));
        }
        out.error(Code::BadText, span, format!("{} can't be what a label says", quoted(read))).help(format!(
            "1 to {LABEL_BYTES_MAX} letters, digits, `-`, `_` and `.`, with a letter or a digit at both ends"
        ));
        None
    }
}

/// The name of a secret, and of the file that has it: as the value of a label.
#[derive(Clone, Debug)]
pub(crate) struct SecretName(pub(crate) String);

impl Form for SecretName {
    const ONCE: bool = true;

    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = text(value, "the name of a secret, a string", span, out)?;
        if is_secret_name(read) {
            return Some(Self(read.to_owned()));
        }
        out.error(Code::BadText, span, format!("{} can't be the name of a secret", quoted(read))).help(format!(
            "1 to {LABEL_BYTES_MAX} letters, digits, `-`, `_` and `.`, with a letter or a digit at both ends"
        ));
        None
    }
}

/// Whether a secret may have this name. It is safe as a file name.
#[must_use]
pub fn is_secret_name(text: &str) -> bool {
    is_label_value(text)
}

inline_schema!(SecretName, |_generator| json_schema!({ "type": "string", "pattern": LABEL_PATTERN }));

fn is_label_value(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    (1..=LABEL_BYTES_MAX).contains(&text.len())
        && ends(text.chars().next())
        && ends(text.chars().last())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

inline_schema!(Label, |_generator| json_schema!({ "type": "string", "pattern": LABEL_PATTERN }));

words!(RestartPolicy, "restart policy" {
    "always" => RestartPolicy::Always, "However the program ended.";
    "on-failure" => RestartPolicy::OnFailure, "When it ended with a code other than 0, or by a signal.";
    "never" => RestartPolicy::Never, "Not at all.";
});

words!(ServiceKind, "kind of service" {
    "directory" => ServiceKind::Directory, "Names in, addresses out: a resolver.";
    "channel" => ServiceKind::Channel, "Channels to a program of a domain, which offers them itself.";
    "program" => ServiceKind::Program, "Files that a program of a domain serves.";
    "camera" => ServiceKind::Camera, "Cameras: devices of V4L2 that are files.";
    "socket" => ServiceKind::Socket, "Connections to a program of a domain, which listens at a TCP or Unix socket.";
    "coordination" => ServiceKind::Coordination, "Keys, locks and the like, kept whatever dies.";
    "events" => ServiceKind::Events, "Event channels: domains publish to them and subscribe to them.";
    "location" => ServiceKind::Location, "Positions, by one receiver with several sources.";
    "files" => ServiceKind::Files, "A file tree that several domains share.";
});

words!(ChannelMode, "mode of a channel" {
    "messages" => ChannelMode::Messages, "Messages: each arrives whole.";
    "stream" => ChannelMode::Stream, "Bytes, without borders.";
});

words!(LocationKind, "kind of a source" {
    "nmea" => LocationKind::Nmea, "Sentences of NMEA 0183, by a receiver of satellites.";
    "signals" => LocationKind::Signals, "Strengths of radio signals, beside a survey of the floor.";
});

words!(FrameFormat, "format of frames" {
    "yuyv" => FrameFormat::Yuyv, "Two bytes for each pixel: Y, U, Y, V.";
    "grey" => FrameFormat::Grey, "A byte for each pixel.";
});

/// The size of a frame, as `640x480`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameSize(pub(crate) u32, pub(crate) u32);

impl Form for FrameSize {
    const ONCE: bool = true;

    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = text(value, "a size such as \"640x480\"", span, out)?;
        let side =
            |text: &str| text.parse().ok().filter(|side| (FRAME_SIDE_MIN..=FRAME_SIDE_MAX).contains(side));
        let sides = read.split_once('x').and_then(|(width, height)| Some((side(width)?, side(height)?)));
        match sides.filter(|(width, height)| width % 2 == 0 && height % 2 == 0) {
            Some((width, height)) => Some(Self(width, height)),
            None => {
                let message = format!("{} is no size of a frame", quoted(read));
                out.error(Code::BadSize, span, message).help(format!(
                    "WIDTHxHEIGHT in pixels, both even and from {FRAME_SIDE_MIN} to {FRAME_SIDE_MAX}: \"640x480\""
                ));
                None
            }
        }
    }
}

inline_schema!(
    FrameSize,
    |_generator| json_schema!({ "type": "string", "pattern": "^[0-9]{2,4}x[0-9]{2,4}$" })
);

/// Words of verbs, and what they mean.
const VERBS: [(&str, &str); 12] = [
    ("resolve", "Ask for names."),
    ("control", "Change the settings of one's own sessions, the name servers among them."),
    ("open", "Open channels to the program that offers them."),
    ("connect", "Connect to the socket."),
    ("observe", "See keys, and be told of changes."),
    ("coordinate", "Change keys, take locks."),
    ("publish", "Publish events."),
    ("subscribe", "Subscribe to event channels, and see their newest event."),
    ("manage", "Make event channels, and change and remove those that the domain has made."),
    ("watch", "Open cameras, and take their frames."),
    ("locate", "Read positions."),
    ("choose", "Choose the source of positions and the wanted accuracy, for all."),
];

impl Form for Verb {
    const ONCE: bool = true;

    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        // Which verbs a service knows depends on its kind: that is for whoever admits it.
        let read = text(value, "verb, a string", span, out)?;
        match Self::parse(read) {
            Ok(verb) => Some(verb),
            Err(error) => {
                let help = suggest::nearest(read, VERBS.map(|(word, _)| word))
                    .map(str::to_owned)
                    .or_else(|| likely_name(read).map(|name| name.as_str().to_owned()))
                    .map(|word| format!("did you mean `{word}`?"));
                let message = format!("{} can't be a verb: {error}", quoted(read));
                out.error(Code::UnknownWord, span, message).help = help;
                None
            }
        }
    }
}

inline_schema!(Verb, |_generator| {
    let known: Vec<_> =
        VERBS.iter().map(|(word, doc)| json!({ "const": word, "description": doc })).collect();
    let named =
        json!({ "pattern": NAME_PATTERN, "description": "A verb that a service of kind \"program\" names." });
    json_schema!({ "type": "string", "anyOf": known.into_iter().chain([named]).collect::<Vec<_>>() })
});

words!(EndpointVerb, "verb of an endpoint" {
    "send" => EndpointVerb::Send, "Send messages.";
    "request" => EndpointVerb::Request, "Send requests and receive their replies.";
    "notify" => EndpointVerb::Notify, "Notify.";
    "relay" => EndpointVerb::Relay, "Pass requests of others on.";
});

/// The settings of a service, in the form of its kind.
#[derive(Clone, Debug)]
pub(crate) enum SettingsForm {
    Directory(Box<DirectoryForm>),
    Channel(ChannelForm),
    Program(ProgramForm),
    Socket(SocketForm),
    Coordination(CoordinationForm),
    Events(Box<EventsForm>),
    Camera(CamerasForm),
    Location(LocationForm),
    Files(FilesForm),
}

impl Beside for SettingsForm {
    fn read(
        table: &DeTable<'_>,
        key: &str,
        of: (&str, &Span),
        meant: &[&str],
        out: &mut Report<'_>,
    ) -> Field<Self> {
        let word = table.get("kind").map(|kind| kind.get_ref());
        let is = |kind: ServiceKind| matches!(word, Some(DeValue::String(word)) if *word == kind.as_str());
        if is(ServiceKind::Directory) {
            required(table, key, of, meant, out).map(|form| Self::Directory(Box::new(form)))
        } else if is(ServiceKind::Channel) {
            field(table, key, meant, out).map(Self::Channel)
        } else if is(ServiceKind::Program) {
            field(table, key, meant, out).map(Self::Program)
        } else if is(ServiceKind::Socket) {
            field(table, key, meant, out).map(Self::Socket)
        } else if is(ServiceKind::Coordination) {
            field(table, key, meant, out).map(Self::Coordination)
        } else if is(ServiceKind::Events) {
            field(table, key, meant, out).map(|form| Self::Events(Box::new(form)))
        } else if is(ServiceKind::Camera) {
            required(table, key, of, meant, out).map(Self::Camera)
        } else if is(ServiceKind::Location) {
            required(table, key, of, meant, out).map(Self::Location)
        } else if is(ServiceKind::Files) {
            field(table, key, meant, out).map(Self::Files)
        } else {
            // What its kind is has been reported; nothing can be said of its settings.
            Field::Broken
        }
    }
}

inline_schema!(SettingsForm, |generator| json_schema!({
    "anyOf": [
        generator.subschema_for::<DirectoryForm>(),
        generator.subschema_for::<ChannelForm>(),
        generator.subschema_for::<ProgramForm>(),
        generator.subschema_for::<SocketForm>(),
        generator.subschema_for::<CoordinationForm>(),
        generator.subschema_for::<EventsForm>(),
        generator.subschema_for::<CamerasForm>(),
        generator.subschema_for::<LocationForm>(),
        generator.subschema_for::<FilesForm>()
    ]
}));

/// The sharing of a cache, as a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheModeWord {
    None,
    Private,
    Shared,
}

words!(CacheModeWord, "mode of a cache" {
    "none" => CacheModeWord::None, "Nothing is remembered.";
    "private" => CacheModeWord::Private, "Each domain has a cache of its own: none learns what another asked.";
    "shared" => CacheModeWord::Shared,
        "The domains of `share` have one cache; a first answer takes as long as if it had not been cached.";
});

impl Form for Signal {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let words = Self::ALL.map(Self::as_str);
        if let DeValue::String(written) = value
            && let upper = written.to_uppercase()
            && let bare = upper.strip_prefix("SIG").unwrap_or(&upper)
            && bare != written
            && words.contains(&bare)
        {
            out.error(Code::UnknownWord, span, format!("{} is no signal", quoted(written)))
                .help(format!("did you mean `{bare}`?"));
            return None;
        }
        let read = word(value, "signal that can ask a domain to end", &words, span, out)?;
        Self::ALL.into_iter().find(|signal| signal.as_str() == read)
    }
}

inline_schema!(
    Signal,
    |_generator| json_schema!({ "type": "string", "enum": Signal::ALL.map(Signal::as_str) })
);

/// Where a root comes from.
#[derive(Clone, Debug)]
pub(crate) enum RootForm {
    Host,
    Directory(At<Filled>),
    Image(At<Filled>, Option<At<Filled>>),
}

table_form! {
    /// A root from a directory, or from an OCI image layout.
    RootTable as "a root" {
        /// A directory of the node, relative to the file's directory.
        directory: Filled => optional,
        /// An OCI image layout, a directory or a tar archive, relative to the file's directory; or,
        /// by its name with a tag or a digest, an image of the node's store.
        image: Filled => optional,
        /// The image of the layout; need not be said where there is only one.
        tag: Filled => optional,
    }
}

const ROOT_HELP: &str = "root = \"host\", root = { directory = \"path\" } or root = { image = \"path of an OCI layout\", tag = \"...\" } or root = { image = \"alpine:3.20\" }";

impl Form for RootForm {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        match value {
            DeValue::String(word) if word == "host" => Some(Self::Host),
            DeValue::String(word) => {
                out.error(Code::UnknownWord, span, format!("{} is no root", quoted(word))).help(ROOT_HELP);
                None
            }
            DeValue::Table(_) => Self::from_table(RootTable::read(value, span, out)?, span, out),
            other => wrong_type("\"host\" or a table", other, span, out),
        }
    }
}

impl RootForm {
    fn from_table(table: RootTable, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        match (table.directory, table.image, table.tag) {
            (Field::Given(_), Field::Given(image), _) => {
                out.error(Code::Conflict, &image.span, "a root is a directory or an image, not both")
                    .help(ROOT_HELP);
                None
            }
            (Field::Given(_), _, Field::Given(tag)) => {
                out.error(Code::Conflict, &tag.span, "a directory has no tags; an image has").help(ROOT_HELP);
                None
            }
            (Field::Given(path), Field::Absent, Field::Absent) => Some(Self::Directory(path)),
            (Field::Absent, Field::Given(path), Field::Given(tag)) => Some(Self::Image(path, Some(tag))),
            (Field::Absent, Field::Given(path), Field::Absent) => Some(Self::Image(path, None)),
            (Field::Absent, Field::Absent, _) => {
                out.error(Code::MissingKey, span, "this root says neither `directory` nor `image`")
                    .help(ROOT_HELP);
                None
            }
            _ => None,
        }
    }
}

inline_schema!(RootForm, |generator| json_schema!({
    "oneOf": [
        { "const": "host" },
        {
            "allOf": [generator.subschema_for::<RootTable>()],
            "oneOf": [{ "required": ["directory"], "not": { "required": ["tag"] } }, { "required": ["image"] }]
        }
    ]
}));

/// Where a domain sees a service: a path, or a table that says more.
#[derive(Clone, Debug)]
pub(crate) struct ServiceAt(pub(crate) ServiceAtForm);

impl Form for ServiceAt {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        match value {
            DeValue::String(_) => {
                let at = Filled::read(value, span, out)?;
                Some(Self(ServiceAtForm {
                    at: Field::Given(At { value: at, span: span.clone() }),
                    stub: Field::Absent,
                    resolve: Field::Absent,
                    preload: Field::Absent,
                    targets: Field::Absent,
                }))
            }
            DeValue::Table(_) => ServiceAtForm::read(value, span, out).map(Self),
            other => wrong_type("a path such as \"/srv/dns\", or a table", other, span, out),
        }
    }
}

inline_schema!(ServiceAt, |generator| json_schema!({
    "oneOf": [
        { "type": "string", "pattern": "^((/srv/)?[a-z]([a-z0-9-]{0,30}[a-z0-9])?|(tcp|unix):.+)$" },
        generator.subschema_for::<ServiceAtForm>()
    ]
}));

/// The domain and port that are published at an address, which is the key.
#[derive(Clone, Debug)]
pub(crate) struct PublishAt(pub(crate) PublishForm);

impl Form for PublishAt {
    const KEYS: &str = "^([0-9.]+|\\[[0-9a-fA-F:.]+\\]):[0-9]{1,5}$";

    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        PublishForm::read(value, span, out).map(Self)
    }
}

impl JsonSchema for PublishAt {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PublishAt".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<PublishForm>()
    }
}

/// The targets of a file, whose name is the key.
#[derive(Clone, Debug)]
pub(crate) struct TargetAt(pub(crate) TargetForm);

impl Form for TargetAt {
    const KEYS: &str = "^[^/]{1,255}$";

    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        TargetForm::read(value, span, out).map(Self)
    }
}

impl JsonSchema for TargetAt {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TargetAt".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<TargetForm>()
    }
}

/// A user, with a group perhaps.
#[derive(Clone, Debug)]
pub(crate) struct UserForm(pub(crate) User);

/// The pattern of a user's or group's name (useradd(8), a little wider).
const USER_PATTERN: &str = "^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$";

impl Form for UserForm {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let text = match value {
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            DeValue::String(text) => text,
            other => return wrong_type("a user: a name, a number, or \"user:group\"", other, span, out),
        };
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (id_or_name(user), Some(id_or_name(group))),
            None => (id_or_name(text), None),
        };
        match (user, group) {
            (Some(user), None) => Some(Self(User { user, group: None })),
            (Some(user), Some(Some(group))) => Some(Self(User { user, group: Some(group) })),
            _ => {
                out.error(Code::BadUser, span, format!("{} is no user", quoted(text)))
                    .help("a name or a number up to 4294967294, with a group perhaps: \"nobody\", 1000, \"1000:1000\"");
                None
            }
        }
    }
}

fn id_or_name(text: &str) -> Option<IdOrName> {
    if !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()) {
        // The last number is -1, which means "leave it" to the system calls.
        return text.parse().ok().filter(|id| *id != u32::MAX).map(IdOrName::Id);
    }
    let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-' | b'.');
    let start = text.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric() || c == b'_');
    (start && text.len() <= LOGIN_BYTES_MAX && text.bytes().all(good))
        .then(|| IdOrName::Name(text.to_owned()))
}

inline_schema!(UserForm, |_generator| json_schema!({
    "oneOf": [
        { "type": "integer", "minimum": 0, "maximum": u32::MAX - 1 },
        { "type": "string", "pattern": USER_PATTERN }
    ]
}));

/// The capabilities of Linux 6.x (capabilities(7)), without their prefix.
const CAPABILITIES: &[&str] = &[
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];

/// A capability, without its prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capability(pub(crate) &'static str);

impl Form for Capability {
    const ONCE: bool = true;

    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = text(value, "a capability, a string", span, out)?;
        let bare = read.strip_prefix("CAP_").unwrap_or(read);
        if let Some(known) = CAPABILITIES.iter().find(|known| **known == bare) {
            return Some(Self(known));
        }
        let upper = read.to_uppercase();
        let near =
            suggest::nearest(upper.strip_prefix("CAP_").unwrap_or(&upper), CAPABILITIES.iter().copied());
        let help = near.map_or_else(
            || "capabilities(7) lists them; \"NET_RAW\" and \"CAP_NET_RAW\" are the same".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        out.error(Code::BadCapability, span, format!("{} is no capability", quoted(read))).help(help);
        None
    }
}

inline_schema!(Capability, |_generator| json_schema!({
    "type": "string", "pattern": format!("^(CAP_)?({})$", CAPABILITIES.join("|"))
}));

/// The domains of a permission.
#[derive(Clone, Debug)]
pub(crate) enum DomainsForm {
    All,
    Listed(Vec<At<Filled>>),
}

impl Form for DomainsForm {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        match value {
            DeValue::String(word) if word == "*" => Some(Self::All),
            DeValue::Array(_) => {
                Items::<Filled, DOMAINS_MAX>::read(value, span, out).map(|list| Self::Listed(list.0))
            }
            other => {
                let message = format!("expected a list of domains or \"*\", found {}", type_name(other));
                let help = match other {
                    DeValue::String(name) => format!("did you mean [\"{name}\"]?"),
                    _ => "domains = [\"web\"], or domains = \"*\" for every domain of the file".to_owned(),
                };
                out.error(Code::WrongType, span, message).help(help);
                None
            }
        }
    }
}

inline_schema!(DomainsForm, |_generator| json_schema!({
    "oneOf": [
        { "const": "*" },
        {
            "type": "array", "minItems": 1, "maxItems": DOMAINS_MAX,
            "items": { "type": "string", "pattern": NAME_PATTERN }
        }
    ]
}));
