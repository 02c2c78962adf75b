//! The service itself: what the loop calls, and the way of a request from its bytes to its answer.

use crate::answer::Question;
use crate::cache::Hit;
use crate::failure::Failure;
use crate::lookups::{Ended, Lookups, Resolved};
use crate::measure::{Phase, PhaseTimes, Phases, Stopwatch, nanoseconds};
use crate::message::{self, Incoming};
use crate::name::{self, Key};
use crate::query::{self, Ask, Types};
use crate::render;
use crate::session_table::{Link, Session};
use crate::settings::{Admitted, Effective, Overrides, SettingsError};
use crate::settling::Early;
use crate::task::{Conclusion, Form, Task, Terms, candidates};
use crate::tenant::{Tenant, TenantId, cache_entries};
use crate::upstream::{Health, MAX_PACKET_BYTES, MAX_WAITERS, Sockets, Standing};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};
use serde_json::{Value, json};
use session::{Context, LinkId, ReplyTo};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use wire::directory::{AddressQuery, Addresses, Settings, file};
use wire::service::SESSION_NONE;

/// The directory service.
#[derive(Debug)]
pub struct Directory {
    pub(crate) admitted: Admitted,
    /// Counts the settings, so that what began under old ones is known.
    pub(crate) epoch: u64,
    pub(crate) tenants: HashMap<TenantId, Tenant>,
    pub(crate) links: HashMap<LinkId, Link>,
    pub(crate) sessions: HashMap<(LinkId, u64), Session>,
    pub(crate) lookups: Lookups,
    pub(crate) sockets: Sockets,
    pub(crate) health: Health,
    pub(crate) phase_times: PhaseTimes,
    /// Scratch room for packets, so that a request does not allocate any.
    pub(crate) query: Vec<u8>,
    pub(crate) packet: Vec<u8>,
    /// The same for the datagrams of one socket.
    pub(crate) datagrams: Vec<u8>,
    pub(crate) last_tenant: u64,
    /// When the loop began, if it has.
    pub(crate) started: Option<Instant>,
    /// Questions that wait for their domain's defaults.
    pub(crate) early: Vec<Early>,
    tasks: HashMap<u64, Task>,
    tags: HashMap<(LinkId, u64), u64>,
    last_task: u64,
    /// Requests whose look-ups came back in this call and that have yet to go on.
    resumed: VecDeque<u64>,
    out: Vec<u8>,
}

impl Directory {
    /// A service with these settings.
    ///
    /// # Errors
    /// [`SettingsError`] for what the topology should not have admitted.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let admitted = Admitted::new(settings)?;
        Ok(Self {
            health: Health::new(&admitted.upstreams),
            admitted,
            epoch: 0,
            tenants: HashMap::new(),
            links: HashMap::new(),
            sessions: HashMap::new(),
            lookups: Lookups::default(),
            sockets: Sockets::default(),
            phase_times: PhaseTimes::default(),
            query: Vec::with_capacity(512),
            packet: vec![0; MAX_PACKET_BYTES],
            datagrams: vec![0; MAX_PACKET_BYTES * MAX_WAITERS],
            last_tenant: 0,
            started: None,
            early: Vec::new(),
            tasks: HashMap::new(),
            tags: HashMap::new(),
            last_task: 0,
            resumed: VecDeque::new(),
            out: Vec::with_capacity(4096),
        })
    }

    /// The settings of requests in `session`.
    pub(crate) fn overrides(&self, link: LinkId, session: u64, tenant: TenantId) -> Option<&Overrides> {
        match session {
            SESSION_NONE => self.tenants.get(&tenant).map(|tenant| &tenant.defaults),
            _ => self.sessions.get(&(link, session)).map(|session| &session.overrides),
        }
    }

    /// One request, from its bytes to its answer or to where it has to wait.
    pub(crate) fn take_request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        let mut watch = Stopwatch::start();
        let mut phases = Phases::default();
        phases.add(Phase::Queue, to.received.elapsed());
        let Some(tenant) = self.links.get(&to.link).map(|link| link.tenant) else { return };
        if self.keep_early(ctx.now(), to, tenant, payload) {
            return;
        }
        let made = match to.file {
            file::QUERY => self.task_of_line(ctx, to, tenant, payload),
            file::MESSAGE => self.task_of_message(ctx, to, tenant, payload),
            file::ADDRESSES => self.task_of_address_query(ctx, to, tenant, payload),
            file::NAMES => self.task_of_address(to, tenant, payload).map(Some),
            _ => return self.take_file_request(ctx, to, payload),
        };
        match made {
            Ok(Some(mut task)) => {
                if let Some(tenant) = self.tenants.get_mut(&tenant) {
                    tenant.counters.queries += 1;
                }
                phases.add(Phase::Parse, watch.lap());
                task.phases = phases;
                self.last_task += 1;
                self.drive(ctx, self.last_task, task);
            }
            Ok(None) => {}
            Err(failure) => self.refuse(ctx, to, tenant, failure),
        }
    }

    /// Says no at once.
    pub(crate) fn refuse(&mut self, ctx: &mut dyn Context, to: ReplyTo, tenant: TenantId, failure: Failure) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.counters.failed(failure);
        }
        ctx.answer(to, Err(failure.errno()), &[]);
    }

    fn task(
        &self,
        to: ReplyTo,
        tenant: TenantId,
        form: impl FnOnce(&Effective<'_>) -> Form,
        ask: Ask,
    ) -> Option<Task> {
        let effective = Effective::new(self.overrides(to.link, to.session, tenant)?, &self.admitted);
        let names = candidates(ask.name, effective.search());
        Some(Task::new(to, tenant, form(&effective), Terms::new(&effective), names, ask.types))
    }

    fn task_of_line(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        tenant: TenantId,
        payload: &[u8],
    ) -> Result<Option<Task>, Failure> {
        match query::parse(payload)? {
            query::Line::Ask(ask) => {
                let form = |effective: &Effective<'_>| Form::Lines(effective.format());
                self.task(to, tenant, form, ask).ok_or(Failure::NoSuchSession).map(Some)
            }
            query::Line::Control(line) => {
                self.control_own_session(ctx, to, line)?;
                ctx.answer(to, Ok(b"ok\n"), &[]);
                Ok(None)
            }
        }
    }

    fn task_of_message(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        tenant: TenantId,
        payload: &[u8],
    ) -> Result<Option<Task>, Failure> {
        match message::read(payload)? {
            Incoming::Question(asked, query) => {
                let mut name = query.name().clone();
                name.set_fqdn(true);
                let ask = Ask { name, types: Types::one(query.query_type()) };
                let form = |_: &Effective<'_>| Form::Message(Box::new(asked));
                self.task(to, tenant, form, ask).ok_or(Failure::NoSuchSession).map(Some)
            }
            Incoming::Refuse(asked, code) => {
                self.out.clear();
                asked.refuse(code, &mut self.out)?;
                ctx.answer(to, Ok(&self.out), &[]);
                Ok(None)
            }
        }
    }

    fn task_of_address_query(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        tenant: TenantId,
        payload: &[u8],
    ) -> Result<Option<Task>, Failure> {
        let asked = AddressQuery::decode(payload).map_err(|_| Failure::Malformed)?;
        if let Ok(address) = asked.name.parse::<IpAddr>() {
            return self.answer_literal(ctx, to, &asked, address).map(|()| None);
        }
        let types = match (asked.v4, asked.v6) {
            (true, true) => Types::ADDRESSES,
            (true, false) => Types::one(RecordType::A),
            _ => Types::one(RecordType::AAAA),
        };
        let ask = Ask { name: name::parse(asked.name)?, types };
        self.task(to, tenant, |_| Form::Addresses, ask).ok_or(Failure::NoSuchSession).map(Some)
    }

    /// An address where a name is expected stands for itself, as `getaddrinfo` has it.
    fn answer_literal(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        asked: &AddressQuery<'_>,
        address: IpAddr,
    ) -> Result<(), Failure> {
        if !(if address.is_ipv4() { asked.v4 } else { asked.v6 }) {
            return Err(Failure::NoData);
        }
        let found = Addresses { canonical: address.to_string(), ttl_s: 0, addresses: vec![address] };
        self.out.clear();
        found.encode(&mut self.out);
        ctx.answer(to, Ok(&self.out), &[]);
        Ok(())
    }

    fn task_of_address(&self, to: ReplyTo, tenant: TenantId, payload: &[u8]) -> Result<Task, Failure> {
        let address = match payload.len() {
            4 => payload.try_into().map(<[u8; 4]>::into).map_err(|_| Failure::Malformed)?,
            16 => payload.try_into().map(<[u8; 16]>::into).map_err(|_| Failure::Malformed)?,
            _ => return Err(Failure::Malformed),
        };
        let ask = Ask { name: query::reverse(address), types: Types::one(RecordType::PTR) };
        self.task(to, tenant, |_| Form::Names, ask).ok_or(Failure::NoSuchSession)
    }

    /// Takes a request as far as it goes without waiting.
    fn drive(&mut self, ctx: &mut dyn Context, id: u64, mut task: Task) {
        loop {
            if let Err(failure) = self.ask_all(ctx, id, &mut task) {
                return self.conclude(ctx, id, task, Err(failure));
            }
            if task.waits() {
                self.tags.insert((task.to.link, task.to.tag), id);
                self.tasks.insert(id, task);
                return;
            }
            match task.conclude() {
                Conclusion::Next => {}
                Conclusion::Found => return self.conclude(ctx, id, task, Ok(())),
                Conclusion::Failed(failure) => return self.conclude(ctx, id, task, Err(failure)),
            }
        }
    }

    /// Asks the cache, and then the upstreams, each open question of the present candidate. The
    /// queries of two questions leave together.
    fn ask_all(&mut self, ctx: &mut dyn Context, id: u64, task: &mut Task) -> Result<(), Failure> {
        let questions: [_; 2] = {
            let mut open = task.open_questions();
            [open.next(), open.next()]
        };
        if matches!(questions, [_, None]) {
            return self.ask_each(ctx, id, task, questions);
        }
        self.sockets.hold_queries();
        let asked = self.ask_each(ctx, id, task, questions);
        for ended in self.send_together(ctx) {
            // This request is not in the list of those that wait, yet.
            for &(_, place) in ended.waiters.iter().filter(|(waiter, _)| *waiter == id) {
                task.note(place, ended.outcome.clone());
                task.phases.merge(&ended.phases);
            }
            self.resume(ctx, Some(ended));
        }
        asked
    }

    fn ask_each(
        &mut self,
        ctx: &mut dyn Context,
        id: u64,
        task: &mut Task,
        questions: [Option<(usize, Question)>; 2],
    ) -> Result<(), Failure> {
        let mut watch = Stopwatch::start();
        for (place, question) in questions.into_iter().flatten() {
            if let Some(answer) = self.own_name(task.tenant, &question) {
                task.note(place, Ok(Hit { answer: Arc::new(answer), age_s: 0 }));
                continue;
            }
            let key = Key::new(&question.name, question.record_type, question.wishes);
            let hit = self.remembered(task.tenant, &key, &task.terms, ctx.now());
            let remembered = hit.is_some();
            let Some(tenant) = self.tenants.get_mut(&task.tenant) else { return Err(Failure::NotAllowed) };
            if let Some(hit) = hit {
                tenant.counters.hits += 1;
                tenant.counters.negative_hits +=
                    u64::from(hit.answer.verdict != crate::answer::Verdict::Found);
                task.note(place, Ok(hit));
            } else {
                tenant.counters.misses += 1;
                if !task.counted {
                    if !tenant.may_wait(&self.admitted) {
                        return Err(Failure::TooManyOutstanding);
                    }
                    tenant.waiting += 1;
                    task.counted = true;
                }
            }
            task.phases.add(Phase::Cache, watch.lap());
            if !remembered {
                match self.look_up(ctx, task.tenant, question, key, &task.terms, (id, place)) {
                    Resolved::Now(outcome) => task.note(place, outcome),
                    Resolved::Later(lookup) => task.wait(place, lookup),
                }
                watch.lap();
            }
        }
        Ok(())
    }

    /// A look-up has ended: its waiters may go on.
    pub(crate) fn resume(&mut self, ctx: &mut dyn Context, ended: Option<Ended>) {
        let Some(Ended { waiters, outcome, phases }) = ended else { return };
        for (id, place) in waiters {
            if let Some(task) = self.tasks.get_mut(&id) {
                task.note(place, outcome.clone());
                task.phases.merge(&phases);
                if !task.waits() {
                    self.resumed.push_back(id);
                }
            }
        }
        while let Some(id) = self.resumed.pop_front() {
            if let Some(task) = self.tasks.remove(&id) {
                self.tags.remove(&(task.to.link, task.to.tag));
                self.go_on(ctx, id, task);
            }
        }
    }

    /// All look-ups of a candidate are back.
    fn go_on(&mut self, ctx: &mut dyn Context, id: u64, mut task: Task) {
        match task.conclude() {
            Conclusion::Next => self.drive(ctx, id, task),
            Conclusion::Found => self.conclude(ctx, id, task, Ok(())),
            Conclusion::Failed(failure) => self.conclude(ctx, id, task, Err(failure)),
        }
    }

    /// Answers, counts, and forgets the request.
    fn conclude(&mut self, ctx: &mut dyn Context, id: u64, mut task: Task, verdict: Result<(), Failure>) {
        let mut watch = Stopwatch::start();
        self.out.clear();
        let verdict = verdict.and_then(|()| encode(&task, &mut self.out));
        let verdict = match (verdict, &task.form) {
            (Err(failure), Form::Message(asked)) => {
                self.out.clear();
                asked
                    .refuse(message::code(failure), &mut self.out)
                    .map_err(|_| failure)
                    .map(|()| Some(failure))
            }
            (Err(failure), _) => Err(failure),
            (Ok(()), _) => Ok(None),
        };
        task.phases.add(Phase::Answer, watch.lap());
        self.phase_times.record_all(&task.phases);
        let listed = if task.to.traced { task.phases.list() } else { Vec::new() };
        let failure = match verdict {
            Ok(failure) => {
                ctx.answer(task.to, Ok(&self.out), &listed);
                failure
            }
            Err(failure) => {
                ctx.answer(task.to, Err(failure.errno()), &listed);
                Some(failure)
            }
        };
        self.uncount(&task);
        if let Some(tenant) = self.tenants.get_mut(&task.tenant) {
            tenant.counters.latency.record(nanoseconds(task.to.received.elapsed()));
            if let Some(failure) = failure {
                tenant.counters.failed(failure);
            }
        }
        // A question that was refused beside one that waits: the other's answer has nobody to go
        // to.
        for lookup in task.pending.into_iter().flatten() {
            self.forget_waiter(ctx, lookup, id);
        }
    }

    fn uncount(&mut self, task: &Task) {
        if task.counted
            && let Some(tenant) = self.tenants.get_mut(&task.tenant)
        {
            tenant.waiting = tenant.waiting.saturating_sub(1);
        }
    }

    /// Nobody waits for this request any more.
    pub(crate) fn forget_request(&mut self, ctx: &mut dyn Context, link: LinkId, tag: u64) {
        self.forget_early(link, Some(tag));
        let Some(id) = self.tags.remove(&(link, tag)) else { return };
        let Some(task) = self.tasks.remove(&id) else { return };
        self.uncount(&task);
        for lookup in task.pending.into_iter().flatten() {
            self.forget_waiter(ctx, lookup, id);
        }
    }

    /// The requests of a link that wait.
    pub(crate) fn tags_of(&self, link: LinkId) -> Vec<u64> {
        self.tags.keys().filter(|(of, _)| *of == link).map(|&(_, tag)| tag).collect()
    }

    /// Takes new settings. What was remembered of other upstreams is forgotten.
    pub(crate) fn take_settings(
        &mut self,
        ctx: &mut dyn Context,
        settings: &Value,
    ) -> Result<(), SettingsError> {
        let admitted = Admitted::new(serde_json::from_value(settings.clone())?)?;
        let (old, new) = (&self.admitted.settings, &admitted.settings);
        let other_upstreams = old.upstream != new.upstream;
        let other_sharing = old.cache.mode != new.cache.mode || old.cache.share != new.cache.share;
        self.admitted = admitted;
        if other_upstreams {
            self.health = Health::new(&self.admitted.upstreams);
            self.sockets.retire_all_idle(ctx);
        }
        if other_upstreams || other_sharing {
            self.epoch += 1;
        }
        for tenant in self.tenants.values_mut() {
            tenant.cache.resize(cache_entries(&self.admitted));
            if other_upstreams {
                tenant.standing = Standing::default();
            }
            if other_upstreams || other_sharing {
                tenant.cache.flush();
                tenant.flights.clear();
            }
        }
        Ok(())
    }

    /// The whole state, for the node's administrator.
    pub(crate) fn full_state(&self) -> Value {
        let (opened, reused) = self.sockets.counts();
        let mut domains: Vec<_> = self.tenants.values().collect();
        domains.sort_by(|a, b| (&a.dc, &a.domain).cmp(&(&b.dc, &b.domain)));
        json!({
            "domains": domains.into_iter().map(Tenant::full_state).collect::<Vec<_>>(),
            "upstreams": self.health.state(self.tenants.values().map(|tenant| &tenant.standing), Instant::now()),
            "sockets": { "open": self.sockets.open_count(), "opened": opened, "reused": reused },
            "lookups": self.lookups.len(),
            "phases": self.phase_times.state(),
        })
    }
}

/// The answer in the form that was asked for.
fn encode(task: &Task, out: &mut Vec<u8>) -> Result<(), Failure> {
    let answers: Vec<_> = task.answers().collect();
    match &task.form {
        Form::Lines(format) => {
            if render::lines(&answers, *format, out) {
                Ok(())
            } else {
                Err(Failure::TooLarge)
            }
        }
        Form::Addresses => {
            render::addresses(&answers).encode(out);
            Ok(())
        }
        Form::Names => {
            let names = render::names(&answers);
            names.encode(out);
            if names.0.is_empty() { Err(Failure::NoData) } else { Ok(()) }
        }
        Form::Message(asked) => match answers.first() {
            Some(&aged) => asked.answer(aged, out),
            None => asked.refuse(ResponseCode::ServFail, out),
        },
    }
}

/// A name of the search list, for its listing.
pub(crate) fn search_text(search: &[Name]) -> String {
    if search.is_empty() {
        return "none".into();
    }
    search.iter().map(name::text).collect::<Vec<_>>().join(",")
}
