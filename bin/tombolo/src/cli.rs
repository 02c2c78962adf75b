//! The command line. Help, completions and man pages all come out of these definitions.

use crate::commands::adaptation::AdaptationCommand;
use crate::commands::coordination::{KvCommand, SyncCommand};
use crate::commands::endpoint::EndpointCommand;
use crate::commands::events::ChannelCommand;
use crate::commands::image::ImageCommand;
use crate::commands::link::LinkCommand;
use crate::commands::node::NodeCommand;
use crate::commands::reserve::{AdaptArgs, ReserveCommand};
use crate::commands::secret::SecretCommand;
use crate::commands::volume::VolumeCommand;
use arguments::BenchArgs;
use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Above the options that every command has, so that they stand apart from its own.
const NODE: &str = "Which node";

/// Join isolated domains, on one host or many: services as files, at memory speed where they share
/// a host.
#[derive(Debug, Parser)]
#[command(
    name = "tombolo",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Examples:
  tombolo up examples/quickstart/topology.toml   bring up what the file says
  tombolo ps                                     what runs
  tombolo exec web -- getent hosts example.org   run a command in a domain
  tombolo trace dns example.org                  where the time of a request goes
  tombolo down                                   remove it all again

Exit codes: 0 done, 1 failed, 2 misuse. `exec` has the exit code of its command."
)]
pub struct Cli {
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// The name of the node.
#[derive(Debug, Clone, Args)]
pub struct PlaceArgs {
    /// Sockets and running domains; another directory is another node
    #[arg(long, global = true, help_heading = NODE, value_name = "DIR", env = admin::place::RUN_DIR_VARIABLE, default_value = admin::place::DEFAULT_RUN_DIR)]
    pub run_dir: PathBuf,
    /// Registry, images and logs; survives a reboot
    #[arg(long, global = true, help_heading = NODE, value_name = "DIR", env = admin::place::STATE_DIR_VARIABLE, default_value = admin::place::DEFAULT_STATE_DIR)]
    pub state_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node's daemon in the foreground (`up` starts one by itself)
    #[command(after_help = "Examples:
  tombolo daemon
  TOMBOLO_LOG=debug tombolo daemon --log-json
  tombolo daemon --metrics 127.0.0.1:9464
  tombolo daemon --metrics 0.0.0.0:9464 --metrics-certificate node.pem --metrics-key node.key

It ends on SIGTERM or SIGINT; domains run on, and the next daemon adopts them.")]
    Daemon(DaemonArgs),
    /// Bring up what a topology file says; apply only the difference to what runs
    #[command(after_help = "Examples:
  tombolo up topology.toml
  tombolo up topology.toml --dry-run  what would be done, and why
  tombolo up topology.toml --json     one JSON object a line, for programs
  tombolo up --to 3 shop              what the third file of shop said

Nothing is touched before the whole file is admitted. If a step fails, or Ctrl-C cancels it, what was before is restored.")]
    Up(UpArgs),
    /// List the files of a distributed container that were up; print one, or what differs
    #[command(after_help = "Examples:
  tombolo history                     of the only one there is
  tombolo history shop --show 3       the text of its third file
  tombolo history shop --diff 3       what differs between that and the last one
  tombolo up --to 3 shop              bring up what that one said

The last 20 are kept, also after `down`. Paths, images and files of variables are looked up anew when one is brought up again.")]
    History(HistoryArgs),
    /// Remove a distributed container: its domains, mounts, cgroups and sockets
    #[command(after_help = "Examples:
  tombolo down                        the only one there is
  tombolo down shop                   by name
  tombolo down topology.toml          by the file it came from
  tombolo down --all")]
    Down(DownArgs),
    /// End domains and start them again
    #[command(after_help = "Examples:
  tombolo restart web
  tombolo restart shop/web shop/db")]
    Restart(ActArgs),
    /// End domains, and leave them so until `start` or `up`
    #[command(after_help = "Examples:
  tombolo stop web
  tombolo stop --at-once web          without asking it first")]
    Stop(StopArgs),
    /// Start domains that were stopped, or that ended
    #[command(after_help = "Examples:
  tombolo start web")]
    Start(ActArgs),
    /// Send a signal to the programs of domains; what follows is for their restart policy
    #[command(after_help = "Examples:
  tombolo kill web
  tombolo kill -s HUP web")]
    Kill(KillArgs),
    /// Move a container or process of a cluster to another node, by a restart that is announced
    #[command(after_help = "Examples:
  tombolo move web --to b
  tombolo move shop/web --to b --dry-run      whether it can, and why not
  tombolo move web --to b --json | jq .pause_ms

The node is asked first whether it has the room, the image and the mounts, and makes the image ready. Then the domain ends as its file says
(`stop`), and starts there. Where it does not come up, it goes back. Who uses files of its services waits meanwhile (docs/movement.md).")]
    Move(MoveArgs),
    /// Offer a domain's services to clients of 9P2000.L at a socket of this node, whichever node
    /// has the domain
    #[command(
        name = "9p",
        after_help = "Examples:
  tombolo 9p hall --listen /run/hall.sock
  diodls -s /run/hall.sock -a /srv /

The domain's file says `nine_p = true`. Between nodes it goes over TLS, by the cluster's certificates (docs/services.md)."
    )]
    Ninep(NinepArgs),
    /// Copy files into a domain, or out of it
    #[command(after_help = "Examples:
  tombolo cp settings.toml web:/etc/settings.toml
  tombolo cp web:/var/log/web .
  tombolo cp shop/web:/data ./data    where several distributed containers have a `web`")]
    Cp(CpArgs),
    /// Print what happened: changes, starts and ends of domains; or look at event channels, publish
    /// and subscribe
    #[command(after_help = "Examples:
  tombolo events                                 what happened on this node
  tombolo events -f --json                       and what happens from now on
  tombolo events ls                              event channels of services, and how they are
  tombolo events sub alarms --domain panel       print what is published
  tombolo events pub alarms fire --domain desk")]
    Events(EventsArgs),
    /// Print what domains use: processors, memory, processes
    #[command(after_help = "Examples:
  tombolo stats                       anew each second, on a terminal
  tombolo stats --once --json")]
    Stats(StatsArgs),
    /// Show what is there and what it does: domains, services, channels, links, promises
    #[command(after_help = "Examples:
  tombolo top                         anew each second, on a terminal
  tombolo top --once --json | jq .services")]
    Top(StatsArgs),
    /// List the domains
    #[command(after_help = "Examples:
  tombolo ps
  tombolo ps shop -w                  anew each second
  tombolo ps --json | jq -r '.[] | select(.state != \"running\") | .domain'")]
    Ps(PsArgs),
    /// Run a command in a domain
    #[command(after_help = "Examples:
  tombolo exec web -- getent hosts example.org
  tombolo exec -it web -- bash
  echo text | tombolo exec -i web -- wc -c
  tombolo exec shop/web -- true       where several distributed containers have a `web`

The exit code is the command's; 125: it could not be tried, 126: it can't be run, 127: there is no such command.")]
    Exec(ExecArgs),
    /// Print what a domain wrote
    #[command(after_help = "Examples:
  tombolo logs web
  tombolo logs -f --tail 20 web")]
    Logs(LogsArgs),
    /// Print the node's state tree, or a part of it
    #[command(after_help = "Examples:
  tombolo inspect
  tombolo inspect dc/shop/domains/web
  tombolo inspect dc/shop/services/dns --json")]
    Inspect(InspectArgs),
    /// Several machines as one: begin a cluster, join it, look at its nodes
    #[command(
        subcommand,
        after_help = "Examples:
  tombolo node init --name a --address 10.0.0.1   the first node
  tombolo node token                                   a secret that lets one machine in, once
  tombolo node join 10.0.0.1 TOKEN --name b            on the other machine
  tombolo node ls                                      who is there, and who lives

One machine needs none of this. Several need an etcd (3.4 or later) that all of them reach."
    )]
    Node(NodeCommand),
    /// Look at services
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Look at endpoints, and speak to them
    #[command(
        subcommand,
        after_help = "Examples:
  tombolo endpoint ls                                  what there is, and who is bound
  tombolo endpoint show planner                        who may call it, and whom it may call
  tombolo endpoint receive planner --follow            be `planner`, and see what comes
  tombolo endpoint call planner status --domain desk   ask it, as a program of the domain `desk`

In a domain the program is /run/tombolo/tombolo, and `--domain` is not needed."
    )]
    Endpoint(EndpointCommand),
    /// Keys that programs of a distributed container share: read, set, compare and swap, watch
    #[command(
        subcommand,
        after_help = "Examples:
  tombolo kv set config/colour blue --domain shop/web
  tombolo kv get config/colour
  tombolo kv get config/colour --json            with its revision
  tombolo kv cas config/colour 42 red            only if it is at revision 42; 0: only if there is none
  tombolo kv ls config/
  tombolo kv watch config/

Programs use the files: /srv/NAME/kv/config/colour (docs/coordination.md). In a domain, `--domain` is not needed."
    )]
    Kv(KvCommand),
    /// Locks, semaphores, barriers and queues that programs of a distributed container share
    #[command(
        subcommand,
        after_help = "Examples:
  tombolo sync ls
  tombolo sync lock printer --domain shop/web -- print page.ps       TOMBOLO_TOKEN has the fencing token
  tombolo sync lock printer --timeout 5s -- print page.ps
  tombolo sync lock printer                                          until the standard input ends
  tombolo sync barrier phase --parties 3                             goes on when three are there
  tombolo sync queue jobs --items 100 --durable
  tombolo sync push jobs page.ps
  tombolo sync pop jobs -- xargs print                               where that fails, the item goes back

Programs use the files: /srv/NAME/locks/printer (docs/coordination.md). In a domain, `--domain` is not needed."
    )]
    Sync(SyncCommand),
    /// Look at the links to other nodes, and change what carries them
    #[command(
        subcommand,
        after_help = "Examples:
  tombolo link ls                        links to other nodes, and how they are
  tombolo link show b                    one of them: its proxy, its channels, what they moved
  tombolo link set b --transport quic    over QUIC from now on, without losing a message

A node has a proxy process for each other node of its cluster; all that domains here and there say to each other goes
over the link between the two. A node alone has no links."
    )]
    Link(LinkCommand),
    /// Virtual disks that outlive the domains which have them
    #[command(
        subcommand,
        after_help = "Examples:
  tombolo volume ls                         what there is, and who has it
  tombolo volume show data                  one of them: its engine, its snapshots
  tombolo volume snapshot data monday       remember what it is like now
  tombolo volume rm shop/data               delete it and all that it holds

Domains have volumes by their file: [volume.data] size = \"8GiB\", and volumes = { data = {} } in a domain."
    )]
    Volume(VolumeCommand),
    /// Secrets: values that containers read as files in memory
    #[command(
        subcommand,
        after_help = "Examples:
  tombolo secret set shop/db-password < FILE    from now on, its value
  tombolo secret ls                             who reads what; never a value
  tombolo secret rm shop/db-password            delete it

Containers read them by their file: secrets = [\"db-password\"], at /run/secrets/db-password."
    )]
    Secret(SecretCommand),
    /// Reservations of processors, network, memory and disk
    #[command(
        subcommand,
        after_help = "Examples:
  tombolo reserve ls                                       what is promised to whom
  tombolo reserve explain                                  how it adds up, and who may take how long
  tombolo reserve run --budget 5ms --period 20ms -- COMMAND
  tombolo reserve node --link eth0=100mbit                 what the node has

Domains are promised what their file says: `reserve = { cpu = { budget = \"16ms\", period = \"40ms\" } }`."
    )]
    Reserve(ReserveCommand),
    /// Look at adaptations, which move the promises of domains while they run: [adaptation.NAME]
    #[command(
        subcommand,
        after_help = "Examples:
  tombolo adaptation ls                         what is watched, what it has, what it may not have
  tombolo adaptation pause player               leave things as they are
  tombolo adaptation set player --cpu 12ms      by hand; pauses it
  tombolo events -f                             what is adapted, and why"
    )]
    Adaptation(AdaptationCommand),
    /// Move processor time, network, memory or disk from one to another, in one step
    #[command(after_help = "Examples:
  tombolo adapt best-effort gold --cpu 8ms --network 1mbit
  tombolo adapt best-effort gold --memory 64MiB --json

All of it is admitted, or nothing is changed. Who gives shrinks before who gets grows; if a part fails, all is as before.")]
    Adapt(AdaptArgs),
    /// Make a topology file of a Compose file, and say of each key what becomes of it
    #[command(after_help = "Examples:
  tombolo import compose.yaml                       prints it
  tombolo import compose.yaml -o topology.toml
  tombolo import compose.yaml --partial -o topology.toml   although something can't be mapped

Each key is mapped, or refused with its line, its name and what to do (docs/images.md).")]
    Import(ImportArgs),
    /// Validate a topology file and explain what it would start, without starting anything
    #[command(after_help = "Examples:
  tombolo check topology.toml")]
    Check(CheckArgs),
    /// Measure where the time of requests to a service goes
    #[command(after_help = "Examples:
  tombolo trace dns
  tombolo trace dns example.org --domain web --repeat 100
  tombolo trace dns --json")]
    Trace(TraceArgs),
    /// Images of containers: pull, import, list, remove; and `build`, for the guests of virtual
    /// machines
    #[command(subcommand)]
    Image(ImageCommand),
    /// Look at this machine: whether it has what containers, guests, volumes, reservations and
    /// clusters take
    #[command(after_help = "Examples:
  sudo tombolo doctor
  sudo tombolo doctor --json | jq -r '.[] | select(.state == \"missing\") | .advice'

No daemon is needed, and nothing is changed. The exit code is 1 where containers lack something, which no node can do without.")]
    Doctor(DoctorArgs),
    /// Run a benchmark: a scenario with its promises, or a plan of your own
    #[command(after_help = "Examples:
  tombolo bench                       list the scenarios
  tombolo bench directory --quick
  tombolo bench channel --between vm,host
  tombolo bench directory --json > results.jsonl
  tombolo bench run quick --out results     some two minutes; the report is results/report.html
  tombolo bench compare before after        exit code 1 where something became slower")]
    Bench(BenchArgs),
    /// Print completions for a shell
    #[command(after_help = "Examples:
  tombolo completions bash > /etc/bash_completion.d/tombolo
  tombolo completions zsh > \"${fpath[1]}/_tombolo\"")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory (default: print the main one)
    Man {
        /// Where to put tombolo.1, tombolo-up.1, ...
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Also serve metrics (Prometheus text) at this address: by HTTP at a loopback one, and by
    /// HTTPS at any, with a certificate
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// The certificate for that, in PEM, with those that vouch for it; read again when it changes
    #[arg(long, value_name = "FILE", requires_all = ["metrics", "metrics_key"])]
    pub metrics_certificate: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "metrics_certificate")]
    pub metrics_key: Option<PathBuf>,
    /// Only readers with a certificate of these authorities, in PEM
    #[arg(long, value_name = "FILE", requires = "metrics_certificate")]
    pub metrics_clients: Option<PathBuf>,
    /// The group whose members may do everything, as root may; a name or number. Without this:
    /// tombolo-admin, if the machine has it
    #[arg(long, value_name = "GROUP")]
    pub change_group: Option<String>,
    /// The group whose members may look: states, figures, events and logs. Without this: tombolo,
    /// if the machine has it
    #[arg(long, value_name = "GROUP")]
    pub look_group: Option<String>,
    /// Log as JSON, one object a line
    #[arg(long)]
    pub log_json: bool,
    /// Leave the terminal and say `ready` on the standard output when requests are taken (for `up`)
    #[arg(long, hide = true)]
    pub detached: bool,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// The topology file; with --to, the distributed container, or a file of it
    #[arg(value_name = "FILE", required_unless_present = "to")]
    pub file: Option<PathBuf>,
    /// Bring up what a file of before said: the number of a revision in `tombolo history`
    #[arg(long, value_name = "REVISION")]
    pub to: Option<u64>,
    /// Say what would be done, with the reason of each restart, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Take the place of another file that has the same name and is up
    #[arg(long)]
    pub replace: bool,
    /// Print progress as JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// The distributed container, or a file of it; not needed where only one was up
    #[arg(value_name = "DC|FILE")]
    pub which: Option<String>,
    /// Print the file of this revision
    #[arg(long, value_name = "REVISION", conflicts_with = "diff")]
    pub show: Option<u64>,
    /// Print what differs between this revision and another one: the last, or the one that follows
    #[arg(long, value_name = "REVISION", num_args = 1..=2)]
    pub diff: Vec<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ActArgs {
    /// The domains: NAME, or DC/NAME
    #[arg(required = true, value_name = "DOMAIN")]
    pub domains: Vec<String>,
    /// Print progress as JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct NinepArgs {
    /// NAME, or DC/NAME
    pub domain: String,
    /// The Unix socket, which is made, for root alone, and removed at the end
    #[arg(long, value_name = "SOCKET")]
    pub listen: PathBuf,
}

#[derive(Debug, Args)]
pub struct MoveArgs {
    /// NAME, or DC/NAME
    pub domain: String,
    /// The node to which it goes
    #[arg(long, value_name = "NODE")]
    pub to: String,
    /// Say whether it can move, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct StopArgs {
    /// Kill them without asking them first
    #[arg(long)]
    pub at_once: bool,
    #[command(flatten)]
    pub of: ActArgs,
}

#[derive(Debug, Args)]
pub struct KillArgs {
    /// The signal: its name, with or without SIG, or its number
    #[arg(short, long, default_value = "KILL", value_name = "SIGNAL", value_parser = crate::commands::act::signal)]
    pub signal: i32,
    #[command(flatten)]
    pub of: ActArgs,
}

#[derive(Debug, Args)]
pub struct CpArgs {
    /// The source: PATH here, or DOMAIN:PATH
    #[arg(value_name = "FROM")]
    pub from: String,
    /// Where it goes: PATH here, or DOMAIN:PATH; into it, where it is a directory
    #[arg(value_name = "TO")]
    pub to: String,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct EventsArgs {
    #[command(subcommand)]
    pub command: Option<ChannelCommand>,
    /// Go on printing as things happen
    #[arg(short, long)]
    pub follow: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Print once, also on a terminal
    #[arg(long)]
    pub once: bool,
    /// Print JSON, once
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PsArgs {
    /// Only the domains of this distributed container
    pub dc: Option<String>,
    /// Show it anew each second
    #[arg(short, long)]
    pub watch: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DownArgs {
    /// A distributed container, or the file that it came from
    #[arg(value_name = "DC|FILE", conflicts_with = "all")]
    pub which: Option<String>,
    /// Every distributed container of the node
    #[arg(long)]
    pub all: bool,
    /// Print progress as JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Keep the standard input open
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Run as this user: NAME, UID, NAME:GROUP or UID:GID
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Set a variable for the command (may be repeated)
    #[arg(short, long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Start in this directory of the domain
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// The domain: NAME, or DC/NAME
    pub domain: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Go on printing as the domain writes
    #[arg(short, long)]
    pub follow: bool,
    /// Begin with the last N lines
    #[arg(short = 'n', long, value_name = "N")]
    pub tail: Option<usize>,
    /// Only what was written since then: 10m (ago), or 2026-03-01T12:00:00Z
    #[arg(long, value_name = "WHEN")]
    pub since: Option<crate::commands::logs::Moment>,
    /// Only what was written before then
    #[arg(long, value_name = "WHEN", conflicts_with = "follow")]
    pub until: Option<crate::commands::logs::Moment>,
    /// Print JSON: one object a line, with time and stream
    #[arg(long)]
    pub json: bool,
    /// Print the time in front of each line
    #[arg(short, long)]
    pub timestamps: bool,
    /// The domain: NAME, or DC/NAME
    pub domain: String,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Where in the tree: `dc/NAME/domains/NAME`, for example; a domain's bare name works too
    pub path: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Use a running service as many and clumsy clients do, and say what it does wrong; exit code 1
    /// where something was found
    #[command(after_help = "Examples:\n  tombolo service check thermometer\n  \
                            tombolo service check thermometer --domain hall --write --json")]
    Check(CheckServiceArgs),
    /// List the services
    Ls(ListArgs),
    /// Have the program of another domain serve a service, while its files are open
    #[command(
        after_help = "The service is of kind `program`, and the domain one of its `backups`, with a program that stands by\n\
                            (docs/services.md). Open files stay open; what is under way is answered before, or by the next program.\n\n\
                            Examples:\n  tombolo service move thermometer --to attic\n  \
                            tombolo service move house/thermometer --to hall --json"
    )]
    Move(MoveServiceArgs),
    /// Write a folder with a service of your own that runs: its program, and a topology file
    #[command(after_help = "Examples:\n  tombolo service new --language python thermometer\n  \
                            tombolo service new --language rust --sources ~/tombolo thermometer\n  \
                            tombolo service new --language c thermometer")]
    New(NewServiceArgs),
    /// Show one service: its server, settings, consumers and counters
    Show {
        /// NAME, or DC/NAME
        service: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub struct CheckServiceArgs {
    /// The service, of kind `program`: NAME, or DC/NAME
    pub service: String,
    /// From which domain (default: the first that mounts the service)
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// Also write lines that mean nothing to controls and sessions
    #[arg(long)]
    pub write: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct MoveServiceArgs {
    /// The service: NAME, or DC/NAME
    pub service: String,
    /// The domain whose program is to have it
    #[arg(long, value_name = "DOMAIN")]
    pub to: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct NewServiceArgs {
    /// The folder, which must be new or empty
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// The language of its program
    #[arg(long, value_enum)]
    pub language: Language,
    /// The service's name (default: the folder's)
    #[arg(long)]
    pub name: Option<String>,
    /// Where Tombolo's sources are; a service in Rust uses the crate `service` by its path
    #[arg(long, value_name = "FOLDER")]
    pub sources: Option<PathBuf>,
}

/// A language that services are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    /// Nothing is installed: the package is in the domain
    Python,
    /// Built by cargo, with the crate by its path
    Rust,
    /// Built by make, with the installed library
    C,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The Compose file
    #[arg(value_name = "COMPOSE-FILE")]
    pub file: PathBuf,
    /// Where the topology file goes (default: it is printed); one that is there is not overwritten
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Go on without what can't be mapped
    #[arg(long)]
    pub partial: bool,
    /// Print what is to be said, and the topology file, as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The topology file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The service: NAME, or DC/NAME
    pub service: String,
    /// The request; for a directory, as it would be written to its `query`
    #[arg(default_value = "localhost")]
    pub name: String,
    /// From which domain to ask (default: one that may use `ctl`, or else the first that mounts the
    /// service)
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// How often; medians are printed
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
