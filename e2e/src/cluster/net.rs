//! The network of a bed: a namespace with bridges, and a cable to each node's own namespace.

use super::{address, must};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

/// Bridges of a switch: so many groups can a network be split into.
const BRIDGES: usize = 3;
/// The prefix of the names of our namespaces; the number of the process follows.
const PREFIX: &str = "tb";
/// The folder of the kernel's list of named network namespaces.
const NAMED: &str = "/run/netns";

/// The network between the nodes of a bed; gone when dropped.
pub struct Switch {
    name: String,
    namespaces: Vec<String>,
}

/// A node's place in the network.
#[derive(Debug, Clone)]
pub struct Port {
    index: usize,
    /// Its network namespace.
    pub namespace: String,
    /// Its address.
    pub address: Ipv4Addr,
}

impl Switch {
    /// A switch without cables.
    ///
    /// # Panics
    /// Where its namespace can't be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        clear_away_the_dead();
        let namespace = format!("{name}-net");
        must("make a network namespace", Command::new("ip").args(["netns", "add", &namespace]));
        let switch = Self { name: namespace.clone(), namespaces: vec![namespace] };
        for bridge in 0..BRIDGES {
            let bridge = format!("br{bridge}");
            switch.ip(&["link", "add", &bridge, "type", "bridge", "forward_delay", "0"]);
            switch.ip(&["link", "set", &bridge, "up"]);
        }
        switch
    }

    /// Makes a node's namespace with its card plugged in.
    ///
    /// # Panics
    /// Where that fails.
    pub fn plug(&mut self, index: usize, name: &str) -> Port {
        let namespace = self.name.replace("-net", &format!("-{name}"));
        must("make a network namespace", Command::new("ip").args(["netns", "add", &namespace]));
        self.namespaces.push(namespace.clone());
        let port = Port { index, namespace: namespace.clone(), address: address(index) };
        let cable = port.cable();
        self.ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &namespace]);
        self.ip(&["link", "set", &cable, "master", "br0", "up"]);
        let inside = |arguments: &[&str]| {
            must("set up a node's network", Command::new("ip").args(["-n", &namespace]).args(arguments));
        };
        inside(&["link", "set", "lo", "up"]);
        inside(&["address", "add", &format!("{}/24", port.address), "dev", "eth0"]);
        inside(&["link", "set", "eth0", "up"]);
        port
    }

    /// Gives a node a second card, `eth1`, without an address; all second cards are on one bridge
    /// of their own.
    pub fn plug_second(&self, port: &Port) {
        let (cable, namespace) = (format!("second{}", port.index), port.namespace.as_str());
        self.ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth1", "netns", namespace]);
        self.ip(&["link", "set", &cable, "master", &format!("br{}", BRIDGES - 1), "up"]);
        must(
            "set up a node's second card",
            Command::new("ip").args(["-n", namespace, "link", "set", "eth1", "up"]),
        );
    }

    fn ip(&self, arguments: &[&str]) {
        must("set up a switch", Command::new("ip").args(["-n", &self.name]).args(arguments));
    }

    /// Pulls a node's cable: its card says so.
    pub fn cut(&self, port: &Port) {
        self.ip(&["link", "set", &port.cable(), "down"]);
    }

    /// Loses whatever comes from a node or goes to it, while its card is up: nobody is told.
    pub fn black_hole(&self, port: &Port) {
        self.ip(&["link", "set", &port.cable(), "nomaster"]);
    }

    /// Puts nodes into groups that do not reach each other; those that are in none are left where
    /// they are.
    ///
    /// # Panics
    /// Where there are more groups than bridges.
    pub fn split(&self, groups: &[&[&Port]]) {
        assert!(groups.len() <= BRIDGES, "at most {BRIDGES} groups");
        for (bridge, ports) in groups.iter().enumerate() {
            for port in *ports {
                self.ip(&["link", "set", &port.cable(), "master", &format!("br{bridge}")]);
            }
        }
    }

    /// Lets a node send and receive no faster than so many kbit in a second: what it says queues,
    /// and so comes late.
    pub fn slow(&self, port: &Port, kbit_per_s: u32) {
        self.at_full_speed(port);
        let rate = format!("{kbit_per_s}kbit");
        let tbf = ["root", "tbf", "rate", &rate, "burst", "4kb", "latency", "2s"];
        for (namespace, device) in [(&self.name, port.cable()), (&port.namespace, "eth0".to_owned())] {
            let mut tc = Command::new("tc");
            must("slow a node down", tc.args(["-n", namespace, "qdisc", "add", "dev", &device]).args(tbf));
        }
    }

    /// Undoes [`Switch::slow`].
    pub fn at_full_speed(&self, port: &Port) {
        for (namespace, device) in [(&self.name, port.cable()), (&port.namespace, "eth0".to_owned())] {
            // Where nothing was slowed there is nothing to remove, which is as good.
            let _nothing_there =
                Command::new("tc").args(["-n", namespace, "qdisc", "del", "dev", &device, "root"]).output();
        }
    }

    /// Undoes every cut, black hole, split and slowness of a node.
    pub fn heal(&self, port: &Port) {
        self.at_full_speed(port);
        self.ip(&["link", "set", &port.cable(), "master", "br0", "up"]);
    }
}

impl Port {
    /// Its end of the cable at the switch.
    fn cable(&self) -> String {
        format!("port{}", self.index)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            delete(namespace);
        }
    }
}

/// Removes the name of a network namespace; the namespace goes with its last process.
fn delete(namespace: &str) {
    match Command::new("ip").args(["netns", "del", namespace]).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            eprintln!("network namespace {namespace} stays: {}", String::from_utf8_lossy(&output.stderr))
        }
        Err(error) => eprintln!("network namespace {namespace} stays: {error}"),
    }
}

/// Removes namespaces of test processes that are no more: a test that was killed could not.
fn clear_away_the_dead() {
    for entry in std::fs::read_dir(NAMED).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if let Some(pid) = pid
            && !Path::new("/proc").join(pid.to_string()).exists()
        {
            delete(&name);
        }
    }
}
