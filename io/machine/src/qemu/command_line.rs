//! How QEMU is called: a function of the order alone.

use crate::order::{Accel, Disk, MachineOrder, VolumeDisk};
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::Path;
use wire::guest::{MAX_CHANNELS, PORT_NAME};

/// The first device number of the root ports. Below it stand the devices that every machine has.
const FIRST_PORT_DEVICE: usize = 0x10;
/// Functions of one device (PCI).
const FUNCTIONS: usize = 8;
/// Memory that the firmware keeps for the device behind a root port, in MiB: the largest region of
/// a channel, 32 MiB and a header, as a power of two. Addresses alone: no memory stands behind
/// them.
pub(crate) const PORT_WINDOW_MIB: u64 = 64;
/// The words that the kernel of a guest is always given: one reset after a panic, which ends the
/// machine, and interrupts remapped, which vfio asks for; the initramfs in all of the memory, not
/// in half of it; and no check of the timer, which fails where an emulated processor is kept from
/// its own.
const KERNEL_COMMAND_LINE: &str =
    "console=ttyS0 quiet panic=-1 intel_iommu=on rootfstype=ramfs no_timer_check";
/// Memory that an emulated machine may take for translated code, in MiB. Without a bound it is an
/// eighth of the node's memory, more than the domain has: kernel and programs of a guest take some
/// 30 MiB.
pub(crate) const TRANSLATIONS_MIB: u64 = 64;
/// How long a volume's disk waits for its engine, in seconds: many starts of one.
const RECONNECT_SECONDS: u32 = 120;
/// The processor of an emulated machine. Without the two features that emulation makes six times
/// slower than none.
const EMULATED_PROCESSOR: &str = "max,erms=off,fsrm=off";

/// The descriptors that QEMU inherits, by number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inherited {
    /// Its monitor.
    pub qmp: RawFd,
    /// The guest's port.
    pub port: RawFd,
    /// The guest's console.
    pub console: RawFd,
}

/// Name of the root port with this number, as QMP knows it.
pub(crate) fn port_name(port: usize) -> String {
    format!("port{port}")
}

/// Where a device behind the root port with this number is: as `END` says it.
pub(crate) fn device_place(port: usize) -> String {
    format!("{:x}.{}/00.0", FIRST_PORT_DEVICE + port / FUNCTIONS, port % FUNCTIONS)
}

/// All arguments. `accel` is what was decided: not `auto`.
pub(crate) fn arguments(order: &MachineOrder, accel: Accel, inherited: Inherited) -> Vec<OsString> {
    let mut line = Line::default();
    line.word("-nodefaults").word("-no-user-config").word("-no-reboot");
    line.pair("-display", "none").pair("-name", "guest");
    line.pair("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    line.pair("-machine", "q35").pair("-device", "intel-iommu,intremap=on");
    match accel {
        // The emulated IOMMU remaps interrupts, which the kernel's own controller can't.
        Accel::Kvm => line.pair("-accel", "kvm,kernel-irqchip=split").pair("-cpu", "host"),
        Accel::Auto | Accel::Tcg => {
            line.pair("-accel", format!("tcg,tb-size={TRANSLATIONS_MIB}")).pair("-cpu", EMULATED_PROCESSOR)
        }
    };
    line.pair("-smp", processors(order.cpus, accel)).pair("-m", format!("{}K", order.memory_bytes / 1024));
    line.channels(inherited);
    line.pair("-device", "pvpanic-pci");
    for port in 0..MAX_CHANNELS {
        line.root_port(port);
    }
    line.system(order);
    if let Some(disk) = &order.disk {
        line.disk(disk);
    }
    for (at, volume) in order.volumes.iter().enumerate() {
        line.volume(at, volume);
    }
    if order.user_network {
        line.pair("-nic", "user,model=virtio-net-pci");
    }
    line.0
}

/// The processors, and how many there may be at most. A machine that can only ever have one is
/// emulated without its fences and with atomic accesses that are none (before QEMU 8 both, the
/// accesses in later ones, too): that is enough for a guest alone, and not for one that shares
/// memory with others. So an emulated machine always has a place for a second.
fn processors(cpus: u32, accel: Accel) -> String {
    match accel {
        Accel::Kvm => cpus.to_string(),
        Accel::Auto | Accel::Tcg => format!("{cpus},maxcpus={}", cpus.max(2)),
    }
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn word(&mut self, word: impl Into<OsString>) -> &mut Self {
        self.0.push(word.into());
        self
    }

    fn pair(&mut self, option: &str, value: impl Into<OsString>) -> &mut Self {
        self.word(option).word(value)
    }

    /// The three ways in which QEMU and we speak: monitor, port, console.
    fn channels(&mut self, Inherited { qmp, port, console }: Inherited) -> &mut Self {
        self.pair("-chardev", format!("socket,id=qmp,fd={qmp}")).pair("-mon", "chardev=qmp,mode=control");
        // Without ioeventfd: the port is served by the thread that notices the write, which wakes
        // us sooner.
        self.pair("-device", "virtio-serial-pci,ioeventfd=off,max_ports=2");
        self.pair("-chardev", format!("socket,id=agent,fd={port}"));
        self.pair("-device", format!("virtserialport,chardev=agent,name={PORT_NAME}"));
        self.pair("-chardev", format!("socket,id=console,fd={console}"));
        self.pair("-device", "isa-serial,chardev=console")
    }

    /// A place for a channel's device. It needs no addresses for I/O, of which there are not enough
    /// for all.
    fn root_port(&mut self, port: usize) -> &mut Self {
        let device = FIRST_PORT_DEVICE + port / FUNCTIONS;
        let function = port % FUNCTIONS;
        let number = port + 1;
        self.pair(
            "-device",
            format!(
                "pcie-root-port,id={},chassis={number},slot={number},addr=0x{device:x}.{function},multifunction=on,\
                 pref64-reserve={PORT_WINDOW_MIB}M,io-reserve=0,mem-reserve=1M",
                port_name(port)
            ),
        )
    }

    fn system(&mut self, order: &MachineOrder) -> &mut Self {
        let Some(kernel) = &order.kernel else { return self };
        self.pair("-kernel", kernel);
        if let Some(initramfs) = &order.initramfs {
            self.pair("-initrd", initramfs);
        }
        let append = order.append.trim();
        let gap = if append.is_empty() { "" } else { " " };
        self.pair("-append", format!("{KERNEL_COMMAND_LINE}{gap}{append}"))
    }

    fn disk(&mut self, disk: &Disk) -> &mut Self {
        let read_only = if disk.read_only { "on" } else { "off" };
        let (path, format) = (escaped(&disk.path), disk.format.word());
        let mut file = OsString::from(format!(
            "driver=file,node-name=disk-file,read-only={read_only},discard=unmap,locking=on,filename="
        ));
        file.push(path);
        self.pair("-blockdev", file);
        self.pair(
            "-blockdev",
            format!("driver={format},node-name=disk,file=disk-file,read-only={read_only},discard=unmap"),
        );
        self.pair("-device", "virtio-blk-pci,drive=disk")
    }
}

impl Line {
    /// A volume: its disk waits while its engine is started again, and fails what is under way only
    /// then.
    fn volume(&mut self, at: usize, volume: &VolumeDisk) -> &mut Self {
        let mut server = OsString::from(format!(
            "driver=nbd,node-name=volume{at},export={},reconnect-delay={RECONNECT_SECONDS},discard=unmap,\
             server.type=unix,server.path=",
            volume.export
        ));
        server.push(escaped(&volume.socket));
        self.pair("-blockdev", server);
        self.pair("-device", format!("virtio-blk-pci,drive=volume{at},serial={}", volume.serial))
    }
}

/// A path as a value in one of QEMU's lists: a comma is written twice.
fn escaped(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = path.as_os_str().as_bytes();
    let doubled = bytes.iter().flat_map(|&byte| std::iter::repeat_n(byte, 1 + usize::from(byte == b',')));
    OsString::from_vec(doubled.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::DiskFormat;
    use crate::testing::order;

    const INHERITED: Inherited = Inherited { qmp: 5, port: 6, console: 7 };

    fn line(order: &MachineOrder, accel: Accel) -> String {
        let words = arguments(order, accel, INHERITED);
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_machine_has_what_its_order_says_and_nothing_else() {
        let text = line(&order(), Accel::Tcg);
        for part in [
            "-nodefaults -no-user-config -no-reboot",
            "-accel tcg,tb-size=64 -cpu max,erms=off,fsrm=off -smp 2,maxcpus=2 -m 131072K",
            "-chardev socket,id=qmp,fd=5 -mon chardev=qmp,mode=control",
            "-device virtserialport,chardev=agent,name=tombolo.agent",
            "-kernel /run/machine/kernel -initrd /run/machine/initramfs -append console=ttyS0 quiet panic=-1 intel_iommu=on rootfstype=ramfs no_timer_check",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(text.ends_with("no_timer_check"), "no disk and no network: {text}");
        assert_eq!(text.matches("pcie-root-port").count(), MAX_CHANNELS);
        assert!(line(&order(), Accel::Kvm).contains("-accel kvm,kernel-irqchip=split -cpu host"));
    }

    #[test]
    fn an_emulated_machine_has_real_fences() {
        for (cpus, accel, text) in
            [(1, Accel::Tcg, "1,maxcpus=2"), (3, Accel::Tcg, "3,maxcpus=3"), (1, Accel::Kvm, "1")]
        {
            assert_eq!(processors(cpus, accel), text);
        }
    }

    #[test]
    fn each_root_port_stands_where_the_guest_is_told() {
        assert_eq!((port_name(0), device_place(0)), ("port0".to_owned(), "10.0/00.0".to_owned()));
        assert_eq!(device_place(MAX_CHANNELS - 1), "13.7/00.0");
        let text = line(&order(), Accel::Tcg);
        assert!(
            text.contains("id=port31,chassis=32,slot=32,addr=0x13.7,multifunction=on,pref64-reserve=64M")
        );
    }

    #[test]
    fn a_disk_is_never_probed_and_its_name_changes_no_option() {
        let mut order = order();
        order.append = " debug ".to_owned();
        order.user_network = true;
        order.volumes = vec![VolumeDisk {
            serial: "data".into(),
            socket: "/v/a,b/nbd.sock".into(),
            export: "volume".into(),
        }];
        let path = "/d/a,read-only=off".into();
        order.disk = Some(Disk { path, format: DiskFormat::Raw, read_only: true });
        let text = line(&order, Accel::Tcg);
        for part in [
            "no_timer_check debug -blockdev driver=file,node-name=disk-file,read-only=on,",
            "filename=/d/a,,read-only=off -blockdev driver=raw,node-name=disk,file=disk-file,read-only=on,",
            "-device virtio-blk-pci,drive=disk",
            "-blockdev driver=nbd,node-name=volume0,export=volume,reconnect-delay=120,discard=unmap,server.type=unix,server.path=/v/a,,b/nbd.sock",
            "-device virtio-blk-pci,drive=volume0,serial=data",
            "-nic user,model=virtio-net-pci",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}
