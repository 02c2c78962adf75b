//! The calls of `include/tombolo/endpoint.h`, each a few lines: find the handle, do it.

use crate::buffer::Owned;
use crate::failure::{self, failure};
use crate::library::Library;
use crate::member::{ANSWER_TIMEOUT, Member, Standby, address_of, name_of, number_of};
use crate::ongoing::Wanted;
use crate::polling::deadline_of;
use crate::refusals::{self, Refusal};
use crate::slot::New;
use crate::whole::{Kind, Whole};
use channel::{Config, SpinPolicy};
use endpoint::{Address, Backup, Endpoint, Failed, GrantId, NoPeer, Rights};
use rustix::io::Errno;
use std::ffi::CStr;
use std::time::{Duration, Instant};
use sys::channel_abi::{Channels, Failure, Handle, Options, Outcome, Patience};
use sys::endpoint_abi::{Access, Endpoints, Granted, Message, Outgoing, OwnPlace, Peer, Place};

/// The endpoint's options, from those of the C interface.
fn options_of(options: &Options) -> Outcome<endpoint::Options> {
    if options.ring_bytes != 0 {
        let text =
            "an endpoint's rings are the topology file's to say ([ipc] ring_bytes): set ring_bytes to 0";
        return Err(failure(Errno::INVAL, text));
    }
    let spin = if options.has(Options::NO_SPIN) { SpinPolicy::Never } else { SpinPolicy::default() };
    let batch_bytes = options.batch_bytes as usize;
    Ok(endpoint::Options { spin, batch_bytes, ..endpoint::Options::default() })
}

/// For what never waits.
fn refused<E: Refusal>(error: Failed<E>) -> Failure {
    refusals::of(&error, Patience::Never)
}

impl Library {
    /// Makes a call of an endpoint.
    fn member<T>(&self, endpoint: Handle, work: impl FnOnce(&mut Member) -> Outcome<T>) -> Outcome<T> {
        self.table.find(endpoint)?.whole(endpoint, |member: &mut Member| member.call(work))
    }

    fn add_endpoint(&self, endpoint: Endpoint, options: &Options) -> Outcome<Handle> {
        let member = Member::new(endpoint, options)?;
        self.table.insert(New::Whole { whole: Whole::Endpoint(Box::new(member)), options: *options })
    }

    /// Makes a call of an endpoint that is about a buffer of it.
    fn member_and_buffer<T>(
        &self,
        endpoint: Handle,
        buffer: Handle,
        work: impl FnOnce(&mut Member, &mut Owned) -> Outcome<T>,
    ) -> Outcome<T> {
        let buffers = self.table.find(buffer)?;
        // Before the endpoint is locked: a program may name that one twice.
        match buffers.kind(buffer)? {
            Kind::Buffer => {}
            other => return Err(failure::wrong_kind(other, Kind::Buffer)),
        }
        self.member(endpoint, |member| buffers.whole(buffer, |owned: &mut Owned| work(member, owned)))
    }

    fn find_some(&self, endpoint: Handle, whom: &CStr, waits: bool, patience: Patience) -> Outcome<u64> {
        self.table.find(endpoint)?.whole(endpoint, |member: &mut Member| {
            let wanted = Wanted::find(whom, waits);
            member.call_wanted(Some(wanted), |member| member.find(whom, waits, patience).map(number_of))
        })
    }

    /// Sends a message by a rendezvous, or without.
    fn send_some(
        &self,
        endpoint: Handle,
        to: u64,
        message: Outgoing<'_>,
        patience: Patience,
        is_buffered: bool,
    ) -> Outcome<()> {
        let to = address_of(to)?;
        let wanted = Wanted::send(to, message, is_buffered);
        self.table.find(endpoint)?.whole(endpoint, |member: &mut Member| {
            member.call_wanted(Some(wanted), |member| match is_buffered {
                true => member.send_buffered(to, wanted, message.tag, patience),
                false => member.send(to, wanted, message.tag, patience),
            })
        })
    }
}

/// Two endpoints that were introduced to each other, and nobody else.
fn pair_of(options: &Options) -> Outcome<[Endpoint; 2]> {
    let options = options_of(options)?;
    let (one, other) = channel::pair(&Config::default()).map_err(|error| failure::creating(&error))?;
    let [here, there] = [1, 2].map(|slot| Address { slot, generation: 1 });
    let made = |address, peer, end| -> Result<Endpoint, Failed<endpoint::IntroduceError>> {
        let mut endpoint = Endpoint::alone(address, &options)?;
        endpoint.introduce(peer, Rights::ALL, end)?;
        Ok(endpoint)
    };
    let failed = |error: Failed<endpoint::IntroduceError>| failure::of(None, &error);
    Ok([made(here, there, one).map_err(failed)?, made(there, here, other).map_err(failed)?])
}

fn rights_of(rights: Rights) -> u32 {
    let bits = [
        (rights.send, Peer::SEND),
        (rights.request, Peer::REQUEST),
        (rights.notify, Peer::NOTIFY),
        (rights.relay, Peer::RELAY),
        (rights.hears, Peer::HEARS),
        (rights.answers, Peer::ANSWERS),
        (rights.heeds, Peer::HEEDS),
        (rights.answers_relayed, Peer::ANSWERS_RELAYED),
    ];
    bits.into_iter().filter(|(has, _)| *has).fold(0, |all, (_, bit)| all | bit)
}

fn described(peer: &endpoint::Peer<'_>) -> Peer {
    let (name, domain) = (peer.name.unwrap_or_default(), peer.domain.unwrap_or_default());
    Peer::new(number_of(peer.address), rights_of(peer.rights), peer.alive, name, domain)
}

impl Endpoints for Library {
    fn bind(&self, name: Option<&CStr>, options: &Options) -> Outcome<Handle> {
        self.begin();
        let name = name.map(|name| name_of(name.to_bytes())).transpose()?;
        let wishes = options_of(options)?;
        let bound = match u64::try_from(options.wait_ns) {
            Ok(0) => Endpoint::bind(name, &wishes),
            Ok(ns) => Endpoint::bind_by(name, &wishes, Instant::now().checked_add(Duration::from_nanos(ns))),
            Err(_) => Endpoint::bind_by(name, &wishes, None),
        };
        self.add_endpoint(bound.map_err(refused)?, options)
    }

    fn endpoint_pair(&self, options: &Options) -> Outcome<[Handle; 2]> {
        self.begin();
        let [one, other] = pair_of(options)?;
        let one = self.add_endpoint(one, options)?;
        match self.add_endpoint(other, options) {
            Ok(other) => Ok([one, other]),
            Err(failure) => {
                self.close(one)?;
                Err(failure)
            }
        }
    }

    fn unbind(&self, endpoint: Handle) -> Outcome<()> {
        // Of the right kind, whoever is in a call of it.
        match self.table.find(endpoint)?.kind(endpoint)? {
            Kind::Endpoint => self.close(endpoint),
            other => Err(failure::wrong_kind(other, Kind::Endpoint)),
        }
    }

    fn address(&self, endpoint: Handle) -> Outcome<u64> {
        self.member(endpoint, |member| Ok(number_of(member.endpoint.address())))
    }

    fn name(&self, endpoint: Handle) -> Outcome<String> {
        self.member(endpoint, |member| Ok(member.endpoint.name().unwrap_or_default().to_owned()))
    }

    fn find(&self, endpoint: Handle, whom: &CStr, patience: Patience) -> Outcome<u64> {
        self.find_some(endpoint, whom, false, patience)
    }

    fn wait_for_bind(&self, endpoint: Handle, whom: &CStr, patience: Patience) -> Outcome<u64> {
        self.find_some(endpoint, whom, true, patience)
    }

    fn send(&self, endpoint: Handle, to: u64, message: Outgoing<'_>, patience: Patience) -> Outcome<()> {
        self.send_some(endpoint, to, message, patience, false)
    }

    fn send_buffered(
        &self,
        endpoint: Handle,
        to: u64,
        message: Outgoing<'_>,
        patience: Patience,
    ) -> Outcome<()> {
        self.send_some(endpoint, to, message, patience, true)
    }

    fn flush_held(&self, endpoint: Handle) -> Outcome<()> {
        self.member(endpoint, |member| member.endpoint.flush().map_err(refused))
    }

    fn call(
        &self,
        endpoint: Handle,
        to: u64,
        message: Outgoing<'_>,
        into: &mut [u8],
        patience: Patience,
    ) -> Outcome<Message> {
        let to = address_of(to)?;
        let wanted = Wanted::request(to, message, into.len());
        self.table.find(endpoint)?.whole(endpoint, |member: &mut Member| {
            member.call_wanted(Some(wanted), |member| member.request(to, wanted, message, into, patience))
        })
    }

    fn ask(
        &self,
        endpoint: Handle,
        name: &CStr,
        message: Outgoing<'_>,
        into: &mut [u8],
        patience: Patience,
    ) -> Outcome<Message> {
        let wanted = Wanted::ask(name, message, into.len());
        self.table.find(endpoint)?.whole(endpoint, |member: &mut Member| {
            member.call_wanted(Some(wanted), |member| member.ask(name, wanted, message, into, patience))
        })
    }

    fn tell(&self, endpoint: Handle, name: &CStr, message: Outgoing<'_>, patience: Patience) -> Outcome<()> {
        let wanted = Wanted::tell(name, message);
        self.table.find(endpoint)?.whole(endpoint, |member: &mut Member| {
            member.call_wanted(Some(wanted), |member| member.tell(name, wanted, message.tag, patience))
        })
    }

    fn migrate_start(&self, endpoint: Handle, domain: &CStr) -> Outcome<()> {
        self.table.find(endpoint)?.whole(endpoint, |member: &mut Member| {
            member.call_wanted(None, |member| member.start_migration(domain))
        })
    }

    fn migrate_commit(&self, endpoint: Handle) -> Outcome<()> {
        self.member(endpoint, |member| member.endpoint.commit_migration().map_err(refused))
    }

    fn migrate_roll_back(&self, endpoint: Handle) -> Outcome<()> {
        self.member(endpoint, |member| member.endpoint.roll_back_migration().map_err(refused))
    }

    fn give_up(&self, endpoint: Handle) -> Outcome<bool> {
        self.member(endpoint, |member| Ok(member.give_up()))
    }

    fn receive(
        &self,
        endpoint: Handle,
        from: u64,
        into: &mut [u8],
        message: &mut Message,
        patience: Patience,
    ) -> Outcome<usize> {
        let from = if from == 0 { None } else { Some(address_of(from)?) };
        self.table.find(endpoint)?.whole(endpoint, |member: &mut Member| {
            member.call_wanted(Some(Wanted::receive(from)), |member| {
                member.receive(from, into, message, patience)
            })
        })
    }

    fn reply(&self, endpoint: Handle, request: u64, message: Outgoing<'_>) -> Outcome<()> {
        self.member(endpoint, |member| member.reply(request, message, None))
    }

    fn reply_with_state(
        &self,
        endpoint: Handle,
        request: u64,
        message: Outgoing<'_>,
        state: &[u8],
    ) -> Outcome<()> {
        self.member(endpoint, |member| member.reply(request, message, Some(state)))
    }

    fn keep_state(&self, endpoint: Handle, state: &[u8]) -> Outcome<()> {
        self.member(endpoint, |member| member.endpoint.keep_state(state).map_err(refused))
    }

    fn state(&self, whose: Handle, into: &mut [u8]) -> Outcome<usize> {
        let slot = self.table.find(whose)?;
        match slot.kind(whose)? {
            Kind::Backup => slot.whole(whose, |standby: &mut Standby| Ok(copied(standby.state(), into))),
            _ => self.member(whose, |member| Ok(copied(member.endpoint.state(), into))),
        }
    }

    fn bind_backup(&self, name: &CStr, options: &Options) -> Outcome<Handle> {
        self.begin();
        let name = name_of(name.to_bytes())?;
        let backup = Backup::bind(name, &options_of(options)?).map_err(refused)?;
        let standby = Standby::new(backup, options)?;
        self.table.insert(New::Whole { whole: Whole::Backup(Box::new(standby)), options: *options })
    }

    fn take_over(&self, backup: Handle, patience: Patience) -> Outcome<Handle> {
        let (endpoint, options) = self
            .table
            .find(backup)?
            .whole(backup, |standby: &mut Standby| Ok((standby.wait(patience)?, standby.options)))?;
        self.add_endpoint(endpoint, &options)
    }

    fn promote(&self, backup: Handle) -> Outcome<()> {
        self.table.find(backup)?.whole(backup, |standby: &mut Standby| {
            standby.promote();
            Ok(())
        })
    }

    fn relay(&self, endpoint: Handle, request: u64, to: u64, message: Outgoing<'_>) -> Outcome<()> {
        let to = address_of(to)?;
        self.member(endpoint, |member| member.relay(request, to, message))
    }

    fn notify(&self, endpoint: Handle, to: u64, bits: u64) -> Outcome<()> {
        let to = address_of(to)?;
        self.member(endpoint, |member| member.endpoint.notify(to, bits).map_err(refused))
    }

    fn max_message_to(&self, endpoint: Handle, to: u64) -> Outcome<usize> {
        let to = address_of(to)?;
        self.member(endpoint, |member| {
            let most = member.endpoint.payload_bytes_max(to);
            most.map_err(|why| failure::of(why.errno(Patience::Never), &why))
        })
    }

    fn peers(&self, endpoint: Handle) -> Outcome<Vec<Peer>> {
        self.member(endpoint, |member| Ok(member.endpoint.peers().map(|peer| described(&peer)).collect()))
    }

    fn peer_at(&self, endpoint: Handle, address: u64) -> Outcome<Peer> {
        let address = address_of(address)?;
        self.member(endpoint, |member| match member.endpoint.peer(address) {
            Some(peer) => Ok(described(&peer)),
            None => {
                let found = member.endpoint.payload_bytes_max(address);
                let why = found.err().unwrap_or(NoPeer::Unbound(address));
                Err(failure::of(why.errno(Patience::Never), &why))
            }
        })
    }

    fn buffer(&self, endpoint: Handle, bytes: usize, access: Access) -> Outcome<Handle> {
        let access = match access {
            Access::Read => endpoint::Access::Read,
            Access::Write => endpoint::Access::Write,
        };
        let buffer =
            self.member(endpoint, |member| member.endpoint.buffer(bytes, access).map_err(refused))?;
        let whole = Whole::Buffer(Box::new(Owned(buffer)));
        self.table.insert(New::Whole { whole, options: Options::default() })
    }

    fn buffer_read(&self, buffer: Handle, offset: u64, into: &mut [u8]) -> Outcome<()> {
        self.table.find(buffer)?.whole(buffer, |owned: &mut Owned| owned.read(offset, into))
    }

    fn buffer_write(&self, buffer: Handle, offset: u64, from: &[u8]) -> Outcome<()> {
        self.table.find(buffer)?.whole(buffer, |owned: &mut Owned| owned.write(offset, from))
    }

    fn grant(&self, endpoint: Handle, buffer: Handle, to: u64) -> Outcome<i64> {
        let to = address_of(to)?;
        self.member_and_buffer(endpoint, buffer, |member, owned| {
            let grant = member.endpoint.grant(&mut owned.0, to).map_err(refused)?;
            i64::try_from(grant.number()).map_err(|_| {
                failure(Errno::PROTO, format!("the daemon gave the grant the number {grant}, which is none"))
            })
        })
    }

    fn revoke(&self, endpoint: Handle, buffer: Handle, grant: i64) -> Outcome<()> {
        let grant = grant_of(grant)?;
        self.member_and_buffer(endpoint, buffer, |member, owned| {
            member.endpoint.revoke(&mut owned.0, grant).map_err(refused)
        })
    }

    fn granted(&self, endpoint: Handle, grant: i64, patience: Patience) -> Outcome<Granted> {
        let id = grant_of(grant)?;
        let patience = for_an_answer(patience);
        let found = self.member(endpoint, |member| member.borrow(id, patience))?;
        let access = match found.access {
            endpoint::Access::Read => Access::Read,
            endpoint::Access::Write => Access::Write,
        };
        Ok(Granted::new(grant, number_of(found.owner), found.bytes, access))
    }

    fn copy_in(&self, endpoint: Handle, from: Place, into: &mut [u8], patience: Patience) -> Outcome<()> {
        let (grant, patience) = (grant_of(from.grant)?, for_an_answer(patience));
        self.member(endpoint, |member| {
            let copied = member.endpoint.copy_in(grant, from.offset, into, deadline_of(patience));
            copied.map_err(|error| refusals::of(&error, patience))
        })
    }

    fn copy_out(&self, endpoint: Handle, from: &[u8], to: Place, patience: Patience) -> Outcome<()> {
        let (grant, patience) = (grant_of(to.grant)?, for_an_answer(patience));
        self.member(endpoint, |member| {
            let copied = member.endpoint.copy_out(from, grant, to.offset, deadline_of(patience));
            copied.map_err(|error| refusals::of(&error, patience))
        })
    }

    fn copy(&self, endpoint: Handle, from: Place, to: Place, length: u64, patience: Patience) -> Outcome<()> {
        let (source, target) = (grant_of(from.grant)?, grant_of(to.grant)?);
        let patience = for_an_answer(patience);
        // No memory is that long.
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.member(endpoint, |member| {
            let copied = member.endpoint.copy(
                (source, from.offset),
                (target, to.offset),
                length,
                deadline_of(patience),
            );
            copied.map_err(|error| refusals::of(&error, patience))
        })
    }

    fn copy_to_own(
        &self,
        endpoint: Handle,
        from: Place,
        to: OwnPlace,
        length: u64,
        patience: Patience,
    ) -> Outcome<()> {
        let (grant, patience) = (grant_of(from.grant)?, for_an_answer(patience));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.member_and_buffer(endpoint, to.buffer, |member, owned| {
            let own = (&mut owned.0, to.offset);
            let copied =
                member.endpoint.copy_to_own((grant, from.offset), own, length, deadline_of(patience));
            copied.map_err(|error| refusals::of(&error, patience))
        })
    }

    fn copy_from_own(
        &self,
        endpoint: Handle,
        from: OwnPlace,
        to: Place,
        length: u64,
        patience: Patience,
    ) -> Outcome<()> {
        let (grant, patience) = (grant_of(to.grant)?, for_an_answer(patience));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        self.member_and_buffer(endpoint, from.buffer, |member, owned| {
            let own = (&owned.0, from.offset);
            let copied =
                member.endpoint.copy_from_own(own, (grant, to.offset), length, deadline_of(patience));
            copied.map_err(|error| refusals::of(&error, patience))
        })
    }
}

/// Copies as much of a state as fits, and says how long it is.
fn copied(state: Option<&[u8]>, into: &mut [u8]) -> usize {
    let state = state.unwrap_or_default();
    into.iter_mut().zip(state).for_each(|(to, from)| *to = *from);
    state.len()
}

/// The daemon always answers: whoever has no time gives it the usual one.
fn for_an_answer(patience: Patience) -> Patience {
    if patience == Patience::Never { ANSWER_TIMEOUT } else { patience }
}

fn grant_of(number: i64) -> Outcome<GrantId> {
    match u64::try_from(number) {
        Ok(number) if number > 0 => Ok(GrantId::new(number)),
        _ => Err(failure(Errno::INVAL, format!("{number} is no number of a grant"))),
    }
}
