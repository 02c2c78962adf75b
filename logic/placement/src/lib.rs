//! On which node of a cluster each domain runs.
//!
//! Nothing here waits or looks at the world. Every node of a cluster decides by the same function
//! over what the registry says, so that those who see the same decide the same; who is first is
//! settled by compare-and-swap, which is the caller's.
//!
//! A domain that runs is never moved for the sake of balance: it counts as load where it is.
//! `docs/spec/placement.md` says what is done with the decisions.
//!
//! ```
//! use placement::{Cluster, Node, Standing, Want, Wish};
//! let node = |name: &str, memory_bytes| Node { memory_bytes, ..Node::new(name, Standing::Ready) };
//! let mut cluster = Cluster::new(vec![node("a", 1 << 30), node("b", 4 << 30)]);
//! let want = Want { memory_bytes: 2 << 30, ..Want::new("shop", "web", Wish::Any) };
//! assert_eq!(cluster.place(&want).unwrap(), "b");
//! let refusal = cluster.place(&Want { memory_bytes: 3 << 30, ..want }).unwrap_err();
//! assert!(refusal.to_string().contains("b lacks 1GiB of memory"), "{refusal}");
//! ```

mod promises;
mod refusal;
mod relocation;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use topology::{Domain, NodeChoice, Reserve};

pub use promises::{Free, Given, Promises};
pub use refusal::{Lack, Refusal};
pub use relocation::{Duty, Relocation, Start, Step, duty};
pub use verdict::{Assigned, Verdict, judge};

/// The prospects of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It takes domains.
    Ready,
    /// It is there, and a person wants it empty.
    Drained,
    /// Nobody has heard of it for longer than its lease.
    Lost,
}

/// A node, as the registry describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Unique in the cluster.
    pub name: String,
    /// The labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Processor time that can be promised, in thousandths of one processor.
    pub cpu_milli: u64,
    /// Memory that can be promised, in bytes.
    pub memory_bytes: u64,
    /// Whether it takes domains.
    pub standing: Standing,
    /// The capacity for reservations that it has, and what it has promised.
    pub promises: Arc<Promises>,
}

impl Node {
    /// A node without labels that promises nothing yet.
    #[must_use]
    pub fn new(name: &str, standing: Standing) -> Self {
        Self {
            name: name.to_owned(),
            labels: BTreeMap::new(),
            cpu_milli: 0,
            memory_bytes: 0,
            standing,
            promises: Arc::default(),
        }
    }
}

/// The node that a domain wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Whichever has most room.
    Any,
    /// Whichever has fewest domains of its distributed container that wish the same.
    Spread,
    /// This one alone.
    Named(String),
}

/// The needs of a domain on its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Its distributed container.
    pub dc: String,
    /// Its name.
    pub domain: String,
    /// The node that it wants.
    pub wish: Wish,
    /// Labels that the node must have.
    pub labels: BTreeMap<String, String>,
    /// Processor time that it may use, in thousandths of one processor; 0 where it has no limit.
    pub cpu_milli: u64,
    /// Memory that it may use, in bytes; 0 where it has no limit.
    pub memory_bytes: u64,
    /// The reservation that it asks for. Where that is `strict`, it runs on no node that can't.
    pub reserve: Option<Reserve>,
    /// Whether it starts on another node when its own is lost.
    pub elsewhere: bool,
    /// The only nodes that have what its volumes hold; none: any node will do.
    pub only: Option<BTreeSet<String>>,
}

impl Want {
    /// A domain that needs nothing but a node.
    #[must_use]
    pub fn new(dc: &str, domain: &str, wish: Wish) -> Self {
        Self {
            dc: dc.to_owned(),
            domain: domain.to_owned(),
            wish,
            labels: BTreeMap::new(),
            cpu_milli: 0,
            memory_bytes: 0,
            reserve: None,
            elsewhere: false,
            only: None,
        }
    }

    /// The needs of an admitted domain. A machine needs at least the memory and the processors that
    /// its guest sees.
    #[must_use]
    pub fn of(dc: &str, domain: &Domain) -> Self {
        let machine = domain.machine.as_ref();
        let guest_memory = machine.map_or(0, |machine| machine.memory_bytes);
        let guest_cpu = machine.map_or(0, |machine| u64::from(machine.cpus) * 1000);
        Self {
            dc: dc.to_owned(),
            domain: domain.name.as_str().to_owned(),
            wish: match &domain.placement.node {
                NodeChoice::Any => Wish::Any,
                NodeChoice::Spread => Wish::Spread,
                NodeChoice::Named(name) => Wish::Named(name.as_str().to_owned()),
            },
            labels: domain.placement.labels.clone(),
            cpu_milli: domain.limits.cpu_milli.map_or(guest_cpu, u64::from),
            memory_bytes: domain.limits.memory_bytes.unwrap_or(0).max(guest_memory),
            reserve: domain.reserve.clone(),
            elsewhere: domain.restart.elsewhere,
            only: None,
        }
    }

    /// The name that it has in the books of nodes.
    fn name(&self) -> String {
        format!("{}/{}", self.dc, self.domain)
    }

    /// Whether it may run where what is to be promised to it can't be.
    fn may_go_without(&self) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| !reserve.strict)
    }
}

/// The load of a node.
#[derive(Clone, Debug, Default)]
struct Load {
    cpu_milli: u64,
    memory_bytes: u64,
    domains: usize,
    /// Domains that spread, by distributed container.
    spread: BTreeMap<String, usize>,
    /// The reservations of its domains, by `DC/DOMAIN`.
    reserves: BTreeMap<String, Reserve>,
}

/// The nodes of a cluster and what each of them has taken on.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// By name; the order decides where nothing else does.
    nodes: Vec<Node>,
    load: BTreeMap<String, Load>,
}

impl Cluster {
    /// A cluster on which nothing runs.
    #[must_use]
    pub fn new(mut nodes: Vec<Node>) -> Self {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        nodes.dedup_by(|a, b| a.name == b.name);
        Self { nodes, load: BTreeMap::new() }
    }

    /// The node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// All nodes, by name.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Books a domain on a node, whether it fits or not: it is there.
    pub fn take_on(&mut self, node: &str, want: &Want) {
        let load = self.load.entry(node.to_owned()).or_default();
        load.cpu_milli = load.cpu_milli.saturating_add(want.cpu_milli);
        load.memory_bytes = load.memory_bytes.saturating_add(want.memory_bytes);
        load.domains += 1;
        if let Some(reserve) = want.reserve.clone() {
            load.reserves.insert(want.name(), reserve);
        }
        if want.wish == Wish::Spread {
            *load.spread.entry(want.dc.clone()).or_default() += 1;
        }
    }

    /// The capacity that a node has left to promise; `None`: it does not say what it has.
    #[must_use]
    pub fn promisable(&self, name: &str) -> Option<Free> {
        let nothing = BTreeMap::new();
        let taken = self.load.get(name).map_or(&nothing, |load| &load.reserves);
        promises::free(self.node(name)?, taken)
    }

    /// Chooses a node for a domain and books it there.
    ///
    /// # Errors
    /// The lack of each node, and the node that lacks least.
    pub fn place(&mut self, want: &Want) -> Result<String, Refusal> {
        let node = self.choose(want, |_| true)?;
        self.take_on(&node, want);
        Ok(node)
    }

    /// Chooses a node among those that `may`, and books nothing.
    ///
    /// # Errors
    /// As [`Cluster::place`].
    pub fn choose(&self, want: &Want, may: impl Fn(&str) -> bool) -> Result<String, Refusal> {
        let candidates = self.nodes.iter().filter(|node| may(&node.name));
        let lacks: Vec<(String, Vec<Lack>)> =
            candidates.map(|node| (node.name.clone(), self.lacks(node, want))).collect();
        let fitting = lacks.iter().filter(|(_, lacks)| lacks.is_empty()).map(|(name, _)| name);
        // The least rank wins, and the first name of those that are equal.
        let best = fitting.min_by(|a, b| self.rank(a, want).cmp(&self.rank(b, want)).then_with(|| a.cmp(b)));
        best.cloned().ok_or_else(|| Refusal::new(want, lacks))
    }

    /// As [`Cluster::choose`]; but where nobody can promise what is to be promised, and it may run
    /// without, a node that lacks nothing else.
    ///
    /// # Errors
    /// As [`Cluster::place`].
    pub fn choose_even_without(&self, want: &Want, may: impl Fn(&str) -> bool) -> Result<String, Refusal> {
        self.choose(want, &may).or_else(|refusal| {
            let without = Want { reserve: None, ..want.clone() };
            if want.may_go_without() {
                self.choose(&without, &may).map_err(|_| refusal)
            } else {
                Err(refusal)
            }
        })
    }

    /// The needs of a domain that a node does not fulfil; none: it fits.
    #[must_use]
    pub fn lacks(&self, node: &Node, want: &Want) -> Vec<Lack> {
        let mut lacks = Self::faults(node, want);
        let (free_cpu, free_memory) = self.free(node);
        if want.memory_bytes > free_memory {
            lacks.push(Lack::Memory { missing: want.memory_bytes - free_memory, free: free_memory });
        }
        if want.cpu_milli > free_cpu {
            lacks.push(Lack::Cpu { missing_milli: want.cpu_milli - free_cpu, free_milli: free_cpu });
        }
        lacks.extend(promises::lack(node, self.reserves(&node.name), want));
        lacks
    }

    /// The needs that a node does not fulfil whatever else is there.
    pub(crate) fn faults(node: &Node, want: &Want) -> Vec<Lack> {
        let mut lacks = Vec::new();
        match &want.wish {
            Wish::Named(name) if *name != node.name => lacks.push(Lack::Name { wanted: name.clone() }),
            _ => {}
        }
        match node.standing {
            Standing::Ready => {}
            Standing::Drained => lacks.push(Lack::Drained),
            Standing::Lost => lacks.push(Lack::Lost),
        }
        for (label, value) in &want.labels {
            let has = node.labels.get(label);
            if has != Some(value) {
                lacks.push(Lack::Label { label: label.clone(), wanted: value.clone(), has: has.cloned() });
            }
        }
        if want.only.as_ref().is_some_and(|only| !only.contains(&node.name)) {
            lacks.push(Lack::Volumes);
        }
        lacks.extend(promises::refused(node, want));
        lacks
    }

    fn reserves(&self, node: &str) -> &BTreeMap<String, Reserve> {
        const NONE: &BTreeMap<String, Reserve> = &BTreeMap::new();
        self.load.get(node).map_or(NONE, |load| &load.reserves)
    }

    /// Processor time and memory that are not promised yet.
    fn free(&self, node: &Node) -> (u64, u64) {
        let (cpu, memory) =
            self.load.get(&node.name).map_or((0, 0), |load| (load.cpu_milli, load.memory_bytes));
        (node.cpu_milli.saturating_sub(cpu), node.memory_bytes.saturating_sub(memory))
    }

    /// How little a node suits: fewest that spread beside it, then the smallest share of memory and
    /// of processors that is promised (for who has a reservation: of anything), then fewest
    /// domains. Whole thousandths, so that every node computes the same.
    fn rank(&self, name: &str, want: &Want) -> (usize, u64, usize) {
        let none = Load::default();
        let load = self.load.get(name).unwrap_or(&none);
        let beside = match want.wish {
            Wish::Spread => load.spread.get(&want.dc).copied().unwrap_or(0),
            _ => 0,
        };
        let share = |used: u64, of: u64| {
            let thousandths = u128::from(used) * 1000 / u128::from(of.max(1));
            u64::try_from(thousandths).unwrap_or(u64::MAX)
        };
        let used = self.node(name).map_or(0, |node| {
            let limits =
                share(load.memory_bytes, node.memory_bytes).max(share(load.cpu_milli, node.cpu_milli));
            want.reserve.as_ref().map_or(limits, |_| limits.max(promises::share(node, &load.reserves)))
        });
        (beside, used, load.domains)
    }
}
