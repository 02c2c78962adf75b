//! Services on other nodes. The proxy for a node stands in the tables as if it were the server of
//! what that node's daemon says is served there: so who waits for a service, mounts it or hears of
//! it needs to know nothing more. A channel to it is made here, with one end for the proxy; its
//! other half is made by the other node's daemon, which looks up by itself what the asker may.
//!
//! News from another node is an allegation. A service is taken to be there only if its domain is
//! placed on that very node, and so is a consumer.

use super::offers::shape;
use super::services::Wish;
use super::{Broker, Ends, Identity, Inner, MAX_WAITING_PACKETS, MemberId, Outgoing, Refusal, Role, refuse};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use topology::Service;
use wire::control::{EndpointAddress, Reply};
use wire::proxy::{News, Open, Order, Report};

/// Channels that one other node may have here at a time, in all: as many as four domains.
pub(crate) const MAX_CHANNELS_PER_NODE: usize = 1024;
/// Orders that may wait for a proxy. One that leaves more does not read, and is replaced.
pub(crate) const MAX_WAITING_ORDERS: usize = 16 * 1024;
/// Services that one other node may say it serves: more than all topologies of a node can have
/// open.
const MAX_ALLEGED: usize = 16 * 1024;
/// How long the other node may take to answer an open.
pub(crate) const FAR_TIMEOUT: Duration = Duration::from_secs(5);

/// On which node a domain is: of a distributed container, of a domain. It is called with the
/// broker's lock held, and does not wait.
pub(crate) type Placed = Arc<dyn Fn(&str, &str) -> Option<String> + Send + Sync>;

/// The number of a node, as the cluster's registry has it. As [`Placed`], it does not wait.
pub(crate) type NodeNumbers = Arc<dyn Fn(&str) -> Option<u32> + Send + Sync>;

/// To a proxy, with what it carries.
pub(crate) type ToProxy = (Order, Vec<OwnedFd>);

/// Other nodes, as far as this one knows.
#[derive(Default)]
pub(super) struct Far {
    me: String,
    /// `None`: there are no others.
    placed: Option<Placed>,
    /// `None`: no node has one.
    numbers: Option<NodeNumbers>,
    proxies: BTreeMap<String, Proxy>,
}

impl fmt::Debug for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Far").field("me", &self.me).field("proxies", &self.proxies).finish_non_exhaustive()
    }
}

impl Far {
    /// Whether there may be other nodes.
    pub(super) fn is_clustered(&self) -> bool {
        self.placed.is_some()
    }
}

#[derive(Debug)]
struct Proxy {
    member: MemberId,
    orders: mpsc::Sender<ToProxy>,
    /// Both proxies have spoken; it is up to them to go on after a cut.
    up: bool,
    /// The services that the other daemon says it serves, with the generation of the server there.
    served: BTreeMap<(String, String), u64>,
    /// Endpoints with a name that it says are bound there.
    bound: BTreeMap<(String, String), EndpointAddress>,
    opens: HashMap<u64, oneshot::Sender<Result<(), Refused>>>,
    /// Pairs of endpoints that it had when this daemon came: of a container, who is here, who is
    /// there; name and domain of that one, where it has said them.
    carries: BTreeMap<(String, EndpointAddress, EndpointAddress), (String, String)>,
}

/// The refusal of the other node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(super) errno: i32,
    pub(super) message: String,
}

impl Refused {
    /// The result of an open.
    pub(super) fn of(
        answer: Result<Result<Result<(), Self>, oneshot::error::RecvError>, tokio::time::error::Elapsed>,
        node: &str,
    ) -> Result<(), Self> {
        let errno = Errno::AGAIN.raw_os_error();
        match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(_proxy_gone)) => {
                Err(Self { errno, message: format!("the proxy for node {node} has just ended; try again") })
            }
            Err(_elapsed) => Err(Self {
                errno,
                message: format!(
                    "node {node} has not answered for {} s: the link to it may be cut (`tombolo link ls`); try again",
                    FAR_TIMEOUT.as_secs()
                ),
            }),
        }
    }
}

/// A channel to another node that has been asked for. Dropped, it is no more.
pub(crate) struct FarOpen {
    broker: Broker,
    node: String,
    id: u64,
    answer: oneshot::Receiver<Result<(), Refused>>,
    number: u64,
    who: Identity,
    wish: Wish,
    server: MemberId,
    consumer: Vec<OwnedFd>,
    notices: Vec<OwnedFd>,
    answered: bool,
    _room: Option<OwnedSemaphorePermit>,
}

impl Drop for FarOpen {
    fn drop(&mut self) {
        if !self.answered {
            self.broker.cancel_far(&self.node, self.id);
        }
    }
}

impl Broker {
    /// From now on domains may be on other nodes than this one.
    pub(crate) fn place(&self, me: &str, placed: Placed) {
        let mut inner = self.lock();
        inner.far.me = me.to_owned();
        inner.far.placed = Some(placed);
        inner.reconcile_far();
        drop(inner);
        self.announce();
    }

    /// From now on endpoints may be on other nodes, whose numbers are these.
    pub(crate) fn number_nodes(&self, numbers: NodeNumbers) {
        self.lock().far.numbers = Some(numbers);
    }

    /// Domains are on other nodes than before.
    pub(crate) fn placement_changed(&self) {
        self.lock().reconcile_far();
        self.announce();
    }

    /// There is a proxy for a node. `up`: it says that it speaks with the other one, and has for a
    /// while. One that was there before is no more.
    pub(crate) fn proxy_came(
        &self,
        node: &str,
        pid: u32,
        orders: mpsc::Sender<ToProxy>,
        up: bool,
    ) -> Option<MemberId> {
        self.proxy_left(node);
        let identity =
            Identity { dc: String::new(), domain: String::new(), role: Role::Proxy, pid, main: false };
        let (member, _mail) = self.join(identity)?;
        let mut inner = self.lock();
        let proxy = Proxy {
            member,
            orders,
            up,
            served: BTreeMap::new(),
            bound: BTreeMap::new(),
            opens: HashMap::new(),
            carries: BTreeMap::new(),
        };
        inner.far.proxies.insert(node.to_owned(), proxy);
        if up {
            inner.tell_all(node);
            inner.order(node, Order::News { news: News::Again {} }, Vec::new());
        }
        Some(member)
    }

    /// The proxy for a node has ended: what is served there is gone.
    pub(crate) fn proxy_left(&self, node: &str) {
        // Who waits for its answers hears that there is none.
        let mut inner = self.lock();
        let Some(proxy) = inner.far.proxies.remove(node) else { return };
        inner.carried_no_more(node);
        drop(inner);
        self.leave(proxy.member);
    }

    /// Handles a proxy's message, and answers it where it has to be answered.
    pub(crate) fn proxy_says(&self, node: &str, report: Report) {
        let mut inner = self.lock();
        match report {
            Report::Up { resumed, .. } => {
                let Some(proxy) = inner.far.proxies.get_mut(node) else { return };
                if !(resumed && proxy.up) {
                    proxy.up = true;
                    proxy.served.clear();
                    proxy.bound.clear();
                    inner.reconcile_far();
                    inner.tell_all(node);
                    if resumed {
                        inner.order(node, Order::News { news: News::Again {} }, Vec::new());
                    }
                }
            }
            Report::Opened { id } => inner.answered_far(node, id, Ok(())),
            Report::Refused { id, errno, message } => {
                inner.answered_far(node, id, Err(Refused { errno, message }));
            }
            Report::Asked { pair, open } => {
                let accept = |descriptors| (Order::Accept { pair }, descriptors);
                let accepted = match open {
                    Open::Endpoints { .. } => self.far_endpoint(&mut inner, node, &open).map(accept),
                    Open::Grant { .. } => inner
                        .lend(node, &open)
                        .map(|(buffer, descriptors)| (Order::Lend { pair, buffer }, descriptors)),
                    Open::Channel { .. } | Open::News {} => {
                        self.far_consumer(&mut inner, node, &open).map(accept)
                    }
                };
                let order = match accepted {
                    Ok(accepted) => accepted,
                    Err(Refusal { errno, message }) => {
                        tracing::debug!(node, ?open, message, "another node was refused");
                        (Order::Refuse { pair, errno: errno.raw_os_error(), message }, Vec::new())
                    }
                };
                if let (Order::Accept { .. } | Order::Lend { .. }, Some(name)) =
                    (&order.0, inner.domain_asked_for(&open))
                {
                    inner.order(node, Order::Belongs { pair, name }, Vec::new());
                }
                inner.order(node, order.0, order.1);
            }
            Report::News { news } => inner.news_of(node, news),
            Report::Carries { dc, near, far, name, domain } => {
                let Some(proxy) = inner.far.proxies.get_mut(node) else { return };
                proxy.carries.insert((dc.clone(), near, far), (name, domain));
                inner.meet_far_again(&dc, near.slot);
                inner.tell_met_again();
            }
            Report::Parted { dc, near, far } => {
                if let Some(proxy) = inner.far.proxies.get_mut(node) {
                    proxy.carries.remove(&(dc.clone(), near, far));
                }
                inner.parted_far(node, &dc, near, far);
            }
            // Whoever has the proxy deals with these. One that is withdrawn had its answer at once.
            Report::Hello { .. }
            | Report::Listening { .. }
            | Report::Down { .. }
            | Report::Withdrawn { .. }
            | Report::State { .. }
            | Report::Over { .. } => {}
        }
        drop(inner);
        self.announce();
    }

    /// Begins what a `connect` asks for, where its server is on another node. `None`: it is for
    /// this node to answer.
    pub(crate) fn open_far(
        &self,
        id: MemberId,
        (number, service, entrance, ring_bytes): (u64, &str, &str, u32),
        room: &mut Option<OwnedSemaphorePermit>,
    ) -> Option<FarOpen> {
        let mut inner = self.lock();
        let who = inner.members.get(&id)?.identity.clone();
        let wish = Wish { number, service: service.to_owned(), entrance: entrance.to_owned(), ring_bytes };
        let server = inner.server_of(&who.dc, service)?;
        let node = inner.node_of(server)?.to_owned();
        // What speaks against it on this node is said where it is looked at again.
        let settings = inner.permission(&who, &wish).ok()?.channel;
        inner.room_for(id, &who, &wish, settings.as_ref(), server).ok()?;
        let shape = shape(&wish, settings, inner.guests(&who, server));
        let ends = (self.make)(shape).ok()?;
        let Ends { consumer, server: theirs, consumer_gone, server_gone } = ends;
        let open = Open::Channel {
            dc: who.dc.clone(),
            service: wish.service.clone(),
            domain: who.domain.clone(),
            entrance: wish.entrance.clone(),
            ring_bytes: shape.ring_bytes,
        };
        let (open_id, answer) = inner.open_at(&node, open, theirs)?;
        Some(FarOpen {
            broker: self.clone(),
            node,
            id: open_id,
            answer,
            number,
            who,
            wish,
            server,
            consumer,
            notices: consumer_gone.into_iter().chain(server_gone).collect(),
            answered: false,
            _room: room.take(),
        })
    }

    /// Waits for the other node, and answers the member.
    pub(crate) async fn finish_far(&self, id: MemberId, mut open: FarOpen) {
        let answer = tokio::time::timeout(FAR_TIMEOUT, &mut open.answer).await;
        // Who has answered needs no word that nobody waits.
        open.answered = answer.is_ok();
        let done = Refused::of(answer, &open.node);
        let mut inner = self.lock();
        let number = open.number;
        if let Err(Refused { errno, message }) = done {
            inner.send(id, Reply::Refused { id: number, errno, message }.into());
            return drop(inner);
        }
        let channel = inner.next_number();
        inner.remember_channel(channel, (id, open.server, false), &open.who, &open.wish);
        let watches = open.notices.drain(..).map(|notice| self.watch(channel, notice)).collect();
        if let Some(channel) = inner.channels.get_mut(&channel) {
            channel._watches = watches;
        }
        let descriptors = std::mem::take(&mut open.consumer);
        // Memory does not cross nodes.
        let reply = Reply::Connected { id: number, channel, memory: false };
        inner.send(id, Outgoing { reply, descriptors, _room: None });
        drop(inner);
    }

    pub(super) fn cancel_far(&self, node: &str, id: u64) {
        let mut inner = self.lock();
        let known = inner.far.proxies.get_mut(node).and_then(|proxy| proxy.opens.remove(&id));
        if known.is_some() {
            inner.order(node, Order::Cancel { id }, Vec::new());
        }
    }

    /// Another node asks for a channel to a service here: the end for its proxy.
    fn far_consumer(&self, inner: &mut Inner, node: &str, open: &Open) -> Result<Vec<OwnedFd>, Refusal> {
        let Open::Channel { dc, service, domain, entrance, ring_bytes } = open else {
            return refuse(Errno::OPNOTSUPP, "that is no channel to a service");
        };
        let Some(member) = inner.far.proxies.get(node).map(|proxy| proxy.member) else {
            return refuse(Errno::AGAIN, "its proxy has just ended");
        };
        if !inner.is_placed(dc, domain, node) {
            return refuse(
                Errno::PERM,
                format!(
                    "domain {domain:?} of {dc:?} is not placed on node {node}, as far as node {} knows",
                    inner.far.me
                ),
            );
        }
        if inner.server_of(dc, service).is_some_and(|server| inner.node_of(server).is_some()) {
            return refuse(
                Errno::AGAIN,
                format!("service {service:?} is not served on node {}; try again", inner.far.me),
            );
        }
        let role = match entrance.as_str() {
            "device" => Role::Frontend,
            "stub" | "resolve" => Role::Entrances,
            _ => Role::Program,
        };
        let who = Identity { dc: dc.clone(), domain: domain.clone(), role, pid: 0, main: false };
        let wish =
            Wish { number: 0, service: service.clone(), entrance: entrance.clone(), ring_bytes: *ring_bytes };
        self.connect(inner, member, &who, &wish, None).map(|outgoing| outgoing.descriptors)
    }

    /// Puts an order into the outbox of a proxy. Whether there is one.
    pub(crate) fn order_proxy(&self, node: &str, order: Order) -> bool {
        let mut inner = self.lock();
        inner.order(node, order, Vec::new());
        inner.far.proxies.contains_key(node)
    }
}

impl Inner {
    /// The name of this node, in a cluster.
    pub(super) fn far_me(&self) -> &str {
        &self.far.me
    }

    /// Whether a domain is placed on a node, by what is known here.
    pub(super) fn is_placed(&self, dc: &str, domain: &str, node: &str) -> bool {
        self.placed_on(dc, domain).as_deref() == Some(node)
    }

    /// On which node a domain is, by what is known here.
    pub(super) fn placed_on(&self, dc: &str, domain: &str) -> Option<String> {
        let placed = self.far.placed.as_ref()?;
        let known = self.topologies.get(dc).is_some_and(|topology| topology.domain(domain).is_some());
        if known { placed(dc, domain) } else { None }
    }

    /// The number of another node.
    pub(super) fn number_of(&self, node: &str) -> Option<u32> {
        self.far.numbers.as_ref().and_then(|numbers| numbers(node))
    }

    /// The other node that has a number, if there is a proxy for it.
    pub(super) fn node_with_number(&self, number: u64) -> Option<String> {
        let mut nodes = self.far.proxies.keys();
        nodes.find(|node| self.number_of(node).map(u64::from) == Some(number)).cloned()
    }

    /// Whether this node is the first of the two, where something has to be one's.
    pub(super) fn is_before(&self, node: &str) -> bool {
        self.far.me.as_str() < node
    }

    /// Returns the node that says that a name is bound there, and its address.
    pub(super) fn bound_elsewhere(&self, dc: &str, name: &str) -> Option<(&str, EndpointAddress)> {
        let key = (dc.to_owned(), name.to_owned());
        let mut proxies = self.far.proxies.iter().filter(|(_, proxy)| proxy.up);
        proxies.find_map(|(node, proxy)| Some((node.as_str(), *proxy.bound.get(&key)?)))
    }

    /// Returns the node whose proxy has carried a pair of endpoints since before this daemon came;
    /// name and domain of the far one, as far as it has said them.
    pub(super) fn carried(
        &self,
        dc: &str,
        near: EndpointAddress,
        far: EndpointAddress,
    ) -> Option<(&str, &(String, String))> {
        let key = (dc.to_owned(), near, far);
        self.far.proxies.iter().find_map(|(node, proxy)| Some((node.as_str(), proxy.carries.get(&key)?)))
    }

    /// Asks another node for a pair; the end goes to the proxy.
    pub(super) fn open_at(
        &mut self,
        node: &str,
        open: Open,
        end: Vec<OwnedFd>,
    ) -> Option<(u64, oneshot::Receiver<Result<(), Refused>>)> {
        let id = self.next_number();
        let (tell, answer) = oneshot::channel();
        self.far.proxies.get_mut(node)?.opens.insert(id, tell);
        self.order(node, Order::Open { id, open }, end);
        Some((id, answer))
    }

    /// The domain of this node to which a pair belongs that another node asks for, as reservations
    /// call it.
    fn domain_asked_for(&self, open: &Open) -> Option<String> {
        let (dc, service) = match open {
            Open::Channel { dc, service, .. } => (dc, service),
            Open::Grant { dc, grant, .. } => return self.domain_of_grant(dc, *grant),
            Open::Endpoints { dc, to, .. } => return self.domain_of_endpoint(dc, *to),
            Open::News {} => return None,
        };
        let service = self.topologies.get(dc)?.service(service)?;
        Some(format!("{dc}/{}", service.domain))
    }

    /// The node whose proxy a member is.
    pub(super) fn node_of(&self, member: MemberId) -> Option<&str> {
        let of = |(_, proxy): &(&String, &Proxy)| proxy.member == member;
        self.far.proxies.iter().find(of).map(|(node, _)| node.as_str())
    }

    /// The server of a service, if it is on this node.
    pub(super) fn near_server_of(&self, dc: &str, service: &str) -> Option<MemberId> {
        self.server_of(dc, service).filter(|server| self.node_of(*server).is_none())
    }

    pub(super) fn order(&mut self, node: &str, order: Order, descriptors: Vec<OwnedFd>) {
        let Some(proxy) = self.far.proxies.get_mut(node) else { return };
        if proxy.orders.try_send((order, descriptors)).is_err() {
            // Whoever drives it sees its outbox close, and replaces it.
            tracing::warn!(node, "the proxy for the node does not read: it is replaced");
            proxy.orders = mpsc::channel(1).0;
        }
    }

    fn answered_far(&mut self, node: &str, id: u64, answer: Result<(), Refused>) {
        let open = self.far.proxies.get_mut(node).and_then(|proxy| proxy.opens.remove(&id));
        if let Some(open) = open {
            let _nobody_waits = open.send(answer);
        }
    }

    /// Tells the daemon of a node everything that is so.
    fn tell_all(&mut self, node: &str) {
        self.order(node, Order::News { news: News::Anew {} }, Vec::new());
        let served: Vec<News> = self
            .services
            .iter()
            .filter(|(_, state)| state.server.is_some_and(|server| self.node_of(server).is_none()))
            .map(|((dc, service), state)| News::Served {
                dc: dc.clone(),
                service: service.clone(),
                generation: state.generation,
            })
            .collect();
        for news in served.into_iter().chain(self.bound_here()) {
            self.order(node, Order::News { news }, Vec::new());
        }
    }

    /// Tells all other nodes of a server that came or went here.
    pub(super) fn tell_nodes(&mut self, news: &News) {
        let up = |(_, proxy): &(&String, &Proxy)| proxy.up;
        let nodes: Vec<String> = self.far.proxies.iter().filter(up).map(|(node, _)| node.clone()).collect();
        for node in nodes {
            self.order(&node, Order::News { news: news.clone() }, Vec::new());
        }
    }

    /// Takes in news from the daemon of another node.
    fn news_of(&mut self, node: &str, news: News) {
        let Some(proxy) = self.far.proxies.get_mut(node) else { return };
        if !news.has_names() {
            tracing::warn!(node, "the node's proxy passes on names that nobody can have: they are not heard");
            return;
        }
        match news {
            News::Anew {} => {
                proxy.served.clear();
                proxy.bound.clear();
            }
            News::Again {} => return self.tell_all(node),
            News::Served { dc, service, generation } => {
                if proxy.served.len() >= MAX_ALLEGED {
                    tracing::warn!(
                        node,
                        "the node says that it serves more than any can: the rest is not heard"
                    );
                    return;
                }
                let member = proxy.member;
                let key = (dc, service);
                let before = proxy.served.insert(key.clone(), generation);
                // Another server than before: who was connected to that one connects again.
                if before.is_some_and(|before| before != generation)
                    && self.services.get(&key).is_some_and(|state| state.server == Some(member))
                {
                    self.server_gone(&key);
                }
                return self.reconcile_far_service(&key);
            }
            News::Unserved { dc, service } => {
                let key = (dc, service);
                proxy.served.remove(&key);
                return self.reconcile_far_service(&key);
            }
            News::Bound { dc, name, address } => {
                if proxy.bound.len() >= MAX_ALLEGED {
                    tracing::warn!(
                        node,
                        "the node says that more endpoints are bound than any can have: the rest is not heard"
                    );
                    return;
                }
                let before = proxy.bound.insert((dc.clone(), name), address);
                if let Some(before) = before.filter(|before| *before != address) {
                    self.far_endpoint_ended(node, &dc, before);
                }
                return self.reconcile_far_endpoints();
            }
            News::Unbound { dc, name, address } => {
                let key = (dc, name);
                if proxy.bound.get(&key) == Some(&address) {
                    proxy.bound.remove(&key);
                    self.far_endpoint_ended(node, &key.0, address);
                }
                return;
            }
        }
        self.reconcile_far();
    }

    /// Makes proxies the servers of what is served on their nodes, and of nothing else.
    pub(super) fn reconcile_far(&mut self) {
        let mut wanted = BTreeMap::new();
        for (node, proxy) in self.far.proxies.iter().filter(|(_, proxy)| proxy.up) {
            for (dc, service) in proxy.served.keys() {
                let found = self.topologies.get(dc).and_then(|topology| topology.service(service));
                let Some(found) = found else { continue };
                if self.is_placed(dc, found.domain.as_str(), node) {
                    wanted.insert((dc.clone(), service.clone()), (proxy.member, found.clone()));
                }
            }
        }
        let gone: Vec<_> = self
            .services
            .iter()
            .filter(|(key, state)| {
                let far = state.server.filter(|server| self.is_proxy(*server));
                far.is_some_and(|server| {
                    let same = |(member, service): &(MemberId, Service)| {
                        *member == server && state.kind == Some(service.kind())
                    };
                    !wanted.get(*key).is_some_and(same)
                })
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            self.server_gone(&key);
        }
        for ((dc, name), (member, service)) in wanted {
            // One that is here is nearer, until it is gone.
            if self.server_of(&dc, &name).is_none() {
                self.server_came(&dc, &service, member);
            }
        }
        self.reconcile_far_endpoints();
    }

    /// The same for one service: a node that says something of one has nobody look at all that it
    /// has said.
    fn reconcile_far_service(&mut self, key: &(String, String)) {
        let (dc, name) = key;
        let service = self.topologies.get(dc).and_then(|topology| topology.service(name)).cloned();
        let wanted = service.and_then(|service| {
            let mut proxies = self.far.proxies.iter().filter(|(_, proxy)| proxy.up);
            let (_, proxy) = proxies.find(|(node, proxy)| {
                proxy.served.contains_key(key) && self.is_placed(dc, service.domain.as_str(), node)
            })?;
            Some((proxy.member, service))
        });
        let far = self.server_of(dc, name).filter(|server| self.is_proxy(*server));
        if far.is_some_and(|server| wanted.as_ref().is_none_or(|(member, _)| *member != server)) {
            self.server_gone(key);
        }
        // One that is here is nearer, until it is gone.
        if let Some((member, service)) = wanted
            && self.server_of(dc, name).is_none()
        {
            self.server_came(dc, &service, member);
        }
    }

    /// Whether a member is a proxy, perhaps one that has just ended.
    pub(super) fn is_proxy(&self, member: MemberId) -> bool {
        self.members.get(&member).is_some_and(|member| member.identity.role == Role::Proxy)
    }
}

/// The outbox of a proxy.
pub(crate) fn orders() -> (mpsc::Sender<ToProxy>, mpsc::Receiver<ToProxy>) {
    mpsc::channel(MAX_WAITING_ORDERS.max(MAX_WAITING_PACKETS))
}
