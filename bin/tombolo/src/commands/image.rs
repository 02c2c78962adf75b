//! `tombolo image`: images of containers, and the images of guests that `build` makes for virtual
//! machines.

mod store;

use super::{daemon, place};
use crate::cli::PlaceArgs;
use clap::{Args, Subcommand, ValueEnum};
use image::{Compression, GuestPrograms, Image, ImageError, Kernel, Progress, START, Spec};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use store::{GcArgs, ImportArgs, LsArgs, MeantArgs, PullArgs};
use terminal::{Failure, MISUSE, bytes, print, print_json};

/// Looks in the state directory and then at the machine itself.
const AUTO: &str = "auto";

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Get an image of containers from a registry
    #[command(after_help = "Examples:
  tombolo image pull alpine:3.20
  tombolo image pull registry.example.org/team/web:1.2
  tombolo image pull 127.0.0.1:5000/web@sha256:...

In the topology file: root = { image = \"alpine:3.20\" }. What comes is verified; what is here already is not fetched again.
Credentials are those of `docker login`: $REGISTRY_AUTH_FILE, else $DOCKER_CONFIG/config.json, else ~/.docker/config.json.")]
    Pull(PullArgs),
    /// Get images of containers from files: an OCI layout (directory or tar), or what `docker save`
    /// writes
    #[command(after_help = "Examples:
  tombolo image import web.tar
  tombolo image import build/oci --name web:1.2
  docker save web:1.2 > web.tar && tombolo image import web.tar")]
    Import(ImportArgs),
    /// List the images of containers
    #[command(after_help = "Examples:
  tombolo image ls
  tombolo image ls --json | jq -r '.[].digest'")]
    Ls(LsArgs),
    /// Show one image of containers: its digests, what it runs, its layers
    #[command(after_help = "Examples:
  tombolo image inspect alpine:3.20
  tombolo image inspect 3b1f2a --json")]
    Inspect(MeantArgs),
    /// Remove an image of containers, unless a distributed container has it
    #[command(after_help = "Examples:
  tombolo image rm alpine:3.20        this name, and the image with its last name
  tombolo image rm 3b1f2a             the image, with all its names")]
    Rm(MeantArgs),
    /// Remove what no image of containers needs: images that lost their name, unpacked trees, half
    /// of a pull
    #[command(after_help = "Examples:
  tombolo image gc")]
    Gc(GcArgs),
    /// For virtual machines, not containers: build the kernel and the initramfs of a guest out of
    /// Debian's kernel package, busybox and this program
    #[command(after_help = "Examples:
  tombolo image build                          with the kernel in STATE/kernel, or the machine's own
  tombolo image build --kernel unpacked/ -o vm
  tombolo image build --program /usr/sbin/dnsmasq --start my-script.sh
  tombolo image build --json | jq -r .initramfs

It fetches nothing and runs nothing. A kernel that is not installed is unpacked like this:
  apt-get download $(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2 }')
  dpkg-deb -x linux-image-*.deb /var/lib/tombolo/kernel")]
    Build(BuildArgs),
}

#[derive(Debug, Args)]
pub struct BuildArgs {
    /// The directory with an unpacked kernel package; `auto`: STATE/kernel, else the machine's own
    #[arg(long, value_name = "DIR|auto", default_value = AUTO)]
    pub kernel: PathBuf,
    /// Put vmlinuz, initramfs and manifest here, too (they are kept below the state directory by
    /// their content)
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// A further kernel module, with those that it needs (may be repeated)
    #[arg(long, value_name = "NAME")]
    pub module: Vec<String>,
    /// A further program with the libraries that it needs, at the same place or at PLACE (may be
    /// repeated)
    #[arg(long, value_name = "FILE[:PLACE]")]
    pub program: Vec<String>,
    /// A further file, at PLACE in the guest (may be repeated)
    #[arg(long, value_name = "FILE:PLACE")]
    pub file: Vec<String>,
    /// Where libraries are looked for before the machine's own directories (may be repeated)
    #[arg(long, value_name = "DIR")]
    pub library_path: Vec<PathBuf>,
    /// The command that the guest runs when it is up and is no domain; it switches off afterwards
    /// (default: a shell)
    #[arg(long, value_name = "FILE")]
    pub start: Option<PathBuf>,
    /// How the initramfs is packed; a guest with little memory needs `zstd`
    #[arg(long, value_enum, default_value_t = Packed::Zstd)]
    pub compression: Packed,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// [`Compression`], on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Packed {
    None,
    Gzip,
    Zstd,
}

impl From<Packed> for Compression {
    fn from(packed: Packed) -> Self {
        match packed {
            Packed::None => Self::None,
            Packed::Gzip => Self::Gzip,
            Packed::Zstd => Self::Zstd,
        }
    }
}

fn failure(error: ImageError) -> Failure {
    let help = error.help();
    Failure { help, ..Failure::new(error.to_string()) }
}

/// `tombolo image ...`.
pub fn run(place_arguments: &PlaceArgs, command: &ImageCommand) -> Result<(), Failure> {
    match command {
        ImageCommand::Build(arguments) => build(place_arguments, arguments),
        ImageCommand::Pull(arguments) => store::pull(place_arguments, arguments),
        ImageCommand::Import(arguments) => store::import(place_arguments, arguments),
        ImageCommand::Ls(arguments) => store::ls(place_arguments, arguments),
        ImageCommand::Inspect(arguments) => store::inspect(place_arguments, arguments),
        ImageCommand::Rm(arguments) => store::rm(place_arguments, arguments),
        ImageCommand::Gc(arguments) => store::gc(place_arguments, arguments),
    }
}

fn build(place_arguments: &PlaceArgs, arguments: &BuildArgs) -> Result<(), Failure> {
    let state = place(place_arguments)?.state_dir;
    let spec = spec(&state, arguments)?;
    let bar = bar(arguments.json);
    let built = image::build(&spec, &image::cache(&state), &mut |progress| show(&bar, progress));
    bar.finish_and_clear();
    let mut image = built.map_err(failure)?;
    if let Some(output) = &arguments.output {
        image = image::copy_to(&image, &std::path::absolute(output)?).map_err(failure)?;
    }
    if arguments.json { print_json(&image) } else { print(&described(&image)) }
}

fn spec(state: &Path, arguments: &BuildArgs) -> Result<Spec, Failure> {
    let kernel = kernel(state, &arguments.kernel)?;
    let mut spec = image::guest(kernel, &GuestPrograms::find(daemon::program()?).map_err(failure)?);
    spec.compression = arguments.compression.into();
    spec.modules.extend(arguments.module.iter().cloned());
    spec.library_paths.clone_from(&arguments.library_path);
    for program in &arguments.program {
        let (from, to) = program.split_once(':').unwrap_or((program, program));
        spec.program(from, to);
    }
    for file in &arguments.file {
        let Some((from, to)) = file.split_once(':') else {
            return Err(Failure::misuse(format!("--file {file}: it does not say where in the guest"))
                .help("write it as FILE:PLACE, such as notes.txt:/root/notes.txt"));
        };
        let mode = mode_of(Path::new(from))?;
        spec.file(from, to, mode);
    }
    if let Some(start) = &arguments.start {
        spec.file(start, START, 0o755);
    }
    Ok(spec)
}

/// The permission bits that a file has here.
fn mode_of(file: &Path) -> Result<u32, Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    let found = std::fs::metadata(file).map_err(|error| Failure {
        code: MISUSE,
        ..Failure::new(format!("can't read {}: {error}", file.display()))
    })?;
    Ok(found.permissions().mode() & 0o777)
}

fn kernel(state: &Path, asked: &Path) -> Result<Kernel, Failure> {
    if asked != Path::new(AUTO) {
        return Kernel::find(asked).map_err(failure);
    }
    Kernel::auto(state).map_err(failure)
}

/// Progress is for people at a terminal.
fn bar(json: bool) -> ProgressBar {
    if json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg} {pos}/{len}") {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, progress: Progress) {
    match progress {
        Progress::Reading => bar.set_message("reading"),
        Progress::Writing { done, of } => {
            bar.set_message("packing");
            bar.set_length(of as u64);
            bar.set_position(done as u64);
        }
    }
}

fn described(image: &Image) -> String {
    let missing = match image.missing_modules.as_slice() {
        [] => String::new(),
        names => format!("  this kernel has no {}: guests do without\n", names.join(", ")),
    };
    format!(
        "{} image {}, kernel {}\n  {}\n  {} ({}, {} entries, {} unpacked)\n  {}\n{missing}\
         boot it: qemu-system-x86_64 -m 512 -nographic -no-reboot -kernel {} -initrd {} -append 'console=ttyS0 quiet panic=-1'\n",
        if image.cached { "known" } else { "built" },
        image.key,
        image.kernel_version,
        image.kernel.display(),
        image.initramfs.display(),
        bytes(image.initramfs_bytes),
        image.entries,
        bytes(image.content_bytes),
        image.manifest.display(),
        image.kernel.display(),
        image.initramfs.display(),
    )
}
