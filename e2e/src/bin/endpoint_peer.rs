//! The program of the endpoints' tests, to run inside domains.
//!
//! ```text
//! endpoint_peer serve NAME                  answers every request of everybody, and says what else comes
//! endpoint_peer ask NAME COUNT [AS]         waits for it and asks COUNT times; says who answered
//! endpoint_peer talk NAME STOP_FILE         asks until the file is there, through whatever dies meanwhile; says each change
//! endpoint_peer once WHOM VERB [AS]         one send, request or notify, without waiting for anybody to be bound
//! endpoint_peer lie WHOM VERB [AS]          the same by a program that gives itself every right
//! endpoint_peer late NAME MS                asks and sends with so little time; says what became of each
//! endpoint_peer hold NAME                   is bound to NAME, and does nothing until the end of its input
//! endpoint_peer flood NAME                  sends without end, as fast as it can
//! endpoint_peer cycle NAME NEXT             is bound to NAME, and sends to NEXT, which does the same with another one
//! endpoint_peer relay NAME FIRST SECOND     is bound to NAME, and passes requests on: to the one or the other, by their tag
//! endpoint_peer via NAME TO TAG COUNT       knows TO, and asks NAME with a tag by which TO answers
//! endpoint_peer lend NAME BYTES             is bound to NAME, and grants a buffer of so many bytes to whoever asks for it
//! endpoint_peer copy NAME BYTES             has NAME grant one, and copies from it and to it; says when its grant is over, and when NAME is dead
//! endpoint_peer own NAME BYTES              makes buffers and grants them to NAME until it is refused; then as `hold`
//! endpoint_peer mill AS SEED                does any of the calls with whoever there is, at random, without end
//! endpoint_peer many CONNECTIONS EACH       binds so many without a name, by hand; then as `hold`
//! endpoint_peer raw                         sends each line of its input to the control socket, and prints what comes back
//! ```
//!
//! Exit code 3: a call failed as it should not; its words are printed.

use e2e::peer::{chain, say};
use endpoint::{Access, Address, Content, Endpoint, Failed, From, GrantId, Options, RequestError, Rights};
use std::error::Error;
use std::io::{BufRead, Read};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long one call may take. Far above what it takes.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest request, in bytes; each is a little longer than the one before.
const LONGEST: usize = 8000;
/// Time for one call of the mill: short, so that it meets each kind of end.
const MILL_TIMEOUT: Duration = Duration::from_millis(20);
/// Bytes of the mill's buffers.
const MILL_BUFFER_BYTES: usize = 64 << 10;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["serve", name] => serve(name),
        ["ask", name, count] => ask(name, number(count), None),
        ["ask", name, count, own] => ask(name, number(count), Some(own)),
        ["talk", name, stop] => talk(name, Path::new(stop)),
        ["once", whom, verb] => once(whom, verb, None, false),
        ["once", whom, verb, own] => once(whom, verb, Some(own), false),
        ["lie", whom, verb] => once(whom, verb, None, true),
        ["lie", whom, verb, own] => once(whom, verb, Some(own), true),
        ["late", name, ms] => late(name, number(ms)),
        ["hold", name] => hold(name),
        ["flood", name] => flood(name),
        ["cycle", name, next] => cycle(name, next),
        ["relay", name, first, second] => relay(name, [first, second]),
        ["via", name, to, tag, count] => via((name, to), number(tag) as u32, number(count)),
        ["lend", name, bytes] => lend(name, number(bytes)),
        ["copy", name, bytes] => copy(name, number(bytes)),
        ["own", name, bytes] => own(name, number(bytes)),
        ["mill", own, seed] => mill(own, number(seed)),
        ["many", connections, each] => many(number(connections), number(each)),
        ["raw"] => raw(),
        _ => Err(format!("usage: see the source; not {words:?}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("failed: {}", chain(error.as_ref())));
            ExitCode::from(3)
        }
    }
}

type Done = Result<(), Box<dyn Error>>;

fn number(word: &str) -> u64 {
    word.parse().unwrap_or(0)
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

fn bind(name: Option<&str>) -> Result<Endpoint, Box<dyn Error>> {
    Ok(Endpoint::bind(name, &Options::default())?)
}

/// Until the input ends, by whatever.
fn until_the_input_ends() {
    let mut nothing = Vec::new();
    let _ended = std::io::stdin().read_to_end(&mut nothing);
}

fn serve(name: &str) -> Done {
    let mut me = bind(Some(name))?;
    say(&format!("bound {}", me.address()));
    let mut bytes = Vec::new();
    loop {
        let received = me.receive(&From::Any, &mut bytes, None)?;
        match received.content {
            // That somebody who asked has died, or has no time any more, is no failure of ours.
            Content::Request { tag, asked } => drop(me.reply(&asked, tag, &bytes)),
            Content::Message { tag } => {
                say(&format!("message {tag} of {} bytes from {}", bytes.len(), who(&me, received.source)));
            }
            Content::Notices(bits) => say(&format!("notices {bits:#x} from {}", who(&me, received.source))),
        }
    }
}

/// As the daemon has introduced it.
fn who(me: &Endpoint, address: Address) -> String {
    let peer = me.peer(address);
    let text = peer.map(|peer| format!("{} in {}", peer.name.unwrap_or("-"), peer.domain.unwrap_or("-")));
    text.unwrap_or_else(|| address.to_string())
}

fn question(count: u64) -> Vec<u8> {
    let length = usize::try_from(count).unwrap_or(0) * 37 % LONGEST;
    (0..length).map(|at| (at as u64 ^ count) as u8).collect()
}

/// One request; whether the answer was what was asked.
fn asked(me: &mut Endpoint, to: Address, count: u64) -> Result<Address, Failed<RequestError>> {
    let (question, mut answer) = (question(count), Vec::new());
    let reply = me.send_receive(to, 7, &question, &mut answer, LONGEST, soon())?;
    if answer != question || reply.tag != 7 {
        say(&format!("wrong: request {count} came back as {} bytes", answer.len()));
    }
    Ok(reply.source)
}

fn ask(name: &str, count: u64, own: Option<&str>) -> Done {
    let mut me = bind(own)?;
    let to = me.wait_for_bind(name, soon())?;
    for number in 0..count {
        asked(&mut me, to, number)?;
    }
    say(&format!("answered {count} by {to}"));
    Ok(())
}

fn talk(name: &str, stop: &Path) -> Done {
    let mut me = bind(None)?;
    let mut to = me.wait_for_bind(name, soon())?;
    say(&format!("talking as {} with {to}", me.address()));
    for count in 0.. {
        let last = stop.exists();
        if let Err(error) = asked(&mut me, to, count) {
            say(&format!("lost {to}: {}", chain(&error)));
            to = me.wait_for_bind(name, soon())?;
            say(&format!("talking as {} with {to}", me.address()));
        } else if last {
            say(&format!("stopped as {} with {to}", me.address()));
            break;
        }
    }
    Ok(())
}

fn once(whom: &str, verb: &str, own: Option<&str>, lies: bool) -> Done {
    let mut me = bind(own)?;
    let to = match whom.parse::<Address>() {
        Ok(address) => me.find(address, soon())?,
        Err(_) => me.find(whom, soon())?,
    };
    if lies {
        me.set_rights(to, Rights::ALL)?;
    }
    match verb {
        "send" => me.send(to, 1, b"hello", soon())?,
        "request" => drop(asked(&mut me, to, 1)?),
        "notify" => me.notify(to, 5)?,
        other => return Err(format!("there is no verb {other}").into()),
    }
    say(&format!("done {to}"));
    Ok(())
}

fn late(name: &str, ms: u64) -> Done {
    let mut me = bind(None)?;
    let to = me.wait_for_bind(name, soon())?;
    say(&format!("knows {to}"));
    let mut nothing = String::new();
    std::io::stdin().lock().read_line(&mut nothing)?;
    let time = Duration::from_millis(ms);
    let begun = Instant::now();
    let received = match me.send_receive(to, 7, b"?", &mut Vec::new(), 8, Some(Instant::now() + time)) {
        Ok(_) => "yes, and it answered",
        Err(Failed::Call(RequestError::TimedOut { received: true, .. })) => "yes",
        Err(Failed::Call(RequestError::TimedOut { received: false, .. })) => "no",
        Err(Failed::Call(RequestError::Unknown(_))) => "nobody knows",
        Err(error) => return Err(error.into()),
    };
    // The answer of another node may take a moment more; never as long as this.
    let in_time = begun.elapsed() < time + Duration::from_secs(5);
    say(&format!("received: {received}; in time: {in_time}"));
    Ok(())
}

fn hold(name: &str) -> Done {
    let me = bind(Some(name))?;
    say(&format!("bound {}", me.address()));
    until_the_input_ends();
    Ok(())
}

fn flood(name: &str) -> Done {
    let mut me = bind(None)?;
    let to = me.wait_for_bind(name, soon())?;
    let bytes = [7; 64];
    for count in 0_u64.. {
        me.send_buffered(to, 9, &bytes, None)?;
        if count == 10_000 {
            say("flooding");
        }
    }
    Ok(())
}

fn cycle(name: &str, next: &str) -> Done {
    let mut me = bind(Some(name))?;
    let to = me.wait_for_bind(next, soon())?;
    // Whoever is told of the deadlock withdraws; then the others' messages are received one after
    // the other.
    match me.send(to, 1, name.as_bytes(), soon()) {
        Ok(()) => say("received"),
        Err(error) => say(&format!("not received: {error}")),
    }
    let mut bytes = Vec::new();
    match me.receive(&From::Any, &mut bytes, Some(Instant::now() + Duration::from_secs(2))) {
        Ok(_) => say(&format!("has {}", String::from_utf8_lossy(&bytes))),
        Err(error) => say(&format!("has nothing: {error}")),
    }
    until_the_input_ends();
    Ok(())
}

fn relay(name: &str, to: [&str; 2]) -> Done {
    let mut me = bind(Some(name))?;
    let to = [me.wait_for_bind(to[0], soon())?, me.wait_for_bind(to[1], soon())?];
    say(&format!("bound {}", me.address()));
    let mut bytes = Vec::new();
    loop {
        let Content::Request { tag, asked } = me.receive(&From::Any, &mut bytes, None)?.content else {
            continue;
        };
        me.relay(&asked, to[tag as usize % 2], tag + 10, &bytes)?;
    }
}

fn via((name, to): (&str, &str), tag: u32, count: u64) -> Done {
    let mut me = bind(None)?;
    let answers = me.wait_for_bind(to, soon())?;
    let asked = me.wait_for_bind(name, soon())?;
    let mut answer = Vec::new();
    for count in 0..count {
        let question = question(count);
        let reply = me.send_receive(asked, tag, &question, &mut answer, LONGEST, soon())?;
        if (reply.source, reply.tag) != (answers, tag + 10) || answer != question {
            return Err(format!("{} has answered, and {answers} was to", reply.source).into());
        }
    }
    say(&format!("answered {count} by {answers} through {asked}"));
    Ok(())
}

/// The question to an endpoint that has granted a buffer.
const GRANT: u32 = 20;
/// The sum of what is in it.
const SUM: u32 = 21;
/// Take the grant back.
const REVOKE: u32 = 22;

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length).map(|at| (at as u64 * 7 + at as u64 / 251 + seed) as u8).collect()
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

fn lend(name: &str, bytes: u64) -> Done {
    let mut me = bind(Some(name))?;
    say(&format!("bound {}", me.address()));
    let length = usize::try_from(bytes)?;
    let mut buffer = me.buffer(length, Access::Write)?;
    buffer.write(0, &pattern(length, 1))?;
    let mut payload = Vec::new();
    loop {
        let received = me.receive(&From::Any, &mut payload, None)?;
        let Content::Request { tag, asked } = received.content else { continue };
        let answer = match tag {
            GRANT => me.grant(&mut buffer, received.source)?.number(),
            SUM => {
                let mut all = vec![0; length];
                buffer.read(0, &mut all)?;
                sum(&all)
            }
            _ => {
                let grant = GrantId::new(u64::from_le_bytes(payload.as_slice().try_into()?));
                me.revoke(&mut buffer, grant)?;
                0
            }
        };
        me.reply(&asked, tag, &answer.to_le_bytes())?;
    }
}

/// Asks whoever has granted a buffer.
fn owner_says(me: &mut Endpoint, owner: Address, tag: u32, payload: u64) -> Result<u64, Box<dyn Error>> {
    let mut answer = Vec::new();
    me.send_receive(owner, tag, &payload.to_le_bytes(), &mut answer, 8, soon())?;
    Ok(u64::from_le_bytes(answer.as_slice().try_into()?))
}

fn copy(name: &str, bytes: u64) -> Done {
    let mut me = bind(None)?;
    let owner = me.wait_for_bind(name, soon())?;
    let length = usize::try_from(bytes)?;
    let grant = GrantId::new(owner_says(&mut me, owner, GRANT, 0)?);
    let mut all = vec![0; length];
    me.copy_in(grant, 0, &mut all, soon())?;
    if all != pattern(length, 1) {
        return Err("other bytes came than were there".into());
    }
    let new = pattern(length, 2);
    me.copy_out(&new, grant, 0, soon())?;
    if owner_says(&mut me, owner, SUM, 0)? != sum(&new) {
        return Err("other bytes are there than were copied".into());
    }
    if let Ok(()) = me.copy_in(grant, 1, &mut all, soon()) {
        return Err("bytes were copied that are not there".into());
    }
    say(&format!("copied {length} each way"));
    let second = GrantId::new(owner_says(&mut me, owner, GRANT, 0)?);
    owner_says(&mut me, owner, REVOKE, grant.number())?;
    match me.copy_in(grant, 0, &mut all, soon()) {
        Ok(()) => return Err("bytes were copied of a grant that is over".into()),
        Err(error) => say(&format!("over: {error}")),
    }
    // The other one goes on, in other memory.
    me.copy_in(second, 0, &mut all, soon())?;
    if all != new {
        return Err("what has moved is not what was there".into());
    }
    say("moved");
    let mut answer = Vec::new();
    loop {
        match me.copy_in(second, 0, &mut all, soon()) {
            // Nothing comes: this lets others have the processor, and ends with the owner.
            Ok(()) => drop(me.receive(&From::One(owner), &mut answer, Some(Instant::now() + MILL_TIMEOUT))),
            Err(error) => {
                say(&format!("ended: {error}"));
                return Ok(());
            }
        }
    }
}

fn own(name: &str, bytes: u64) -> Done {
    let mut me = bind(None)?;
    let to = me.wait_for_bind(name, soon())?;
    let mut kept = Vec::new();
    let why = loop {
        let mut buffer = match me.buffer(usize::try_from(bytes)?, Access::Read) {
            Ok(buffer) => buffer,
            Err(error) => break chain(&error),
        };
        if let Err(error) = me.grant(&mut buffer, to) {
            break chain(&error);
        }
        kept.push(buffer);
    };
    say(&format!("made {}: {why}", kept.len()));
    until_the_input_ends();
    Ok(())
}

/// Random numbers that a seed gives (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % bound
    }
}

/// Everybody who is bound to one of these names makes calls to the others.
const MILLERS: [&str; 3] = ["a", "b", "c"];

fn mill(own: &str, seed: u64) -> Done {
    let mut random = Random(seed.wrapping_mul(2).wrapping_add(1));
    // It may be started while there is no daemon: that is killed, too.
    let mut me = Endpoint::bind_by(Some(own), &Options::default(), soon())?;
    say(&format!("bound {}", me.address()));
    let (mut grants, mut bytes) = (Vec::<GrantId>::new(), Vec::new());
    loop {
        let by = Some(Instant::now() + MILL_TIMEOUT);
        let other = MILLERS[random.below(3) as usize];
        // It may be dead, or this one itself: each end of a call will do here but a wrong one, and
        // that is the tests' affair elsewhere.
        let Ok(to) = me.find(other, by) else { continue };
        let payload = question(random.below(200));
        match random.below(8) {
            0 => drop(me.send(to, 1, &payload, by)),
            1 => drop(me.send_buffered(to, 1, &payload, by)),
            2 => drop(me.send_receive(to, 2, &payload, &mut bytes, LONGEST, by)),
            3 => drop(me.notify(to, random.below(64) + 1)),
            4 => drop(mill_buffer(&mut me, to, &mut random)),
            5 => grants.iter().for_each(|grant| drop(me.copy_in(*grant, 0, &mut [0; 4096], by))),
            _ => {
                let Ok(received) = me.receive(&From::Any, &mut bytes, by) else { continue };
                match (received.content, <[u8; 8]>::try_from(bytes.as_slice())) {
                    (Content::Request { tag, asked }, _) => drop(me.reply(&asked, tag, &bytes)),
                    (Content::Message { tag: 3 }, Ok(grant)) => {
                        grants.truncate(8);
                        grants.insert(0, GrantId::new(u64::from_le_bytes(grant)));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Makes a buffer, grants it, says so, and takes it back some time.
fn mill_buffer(me: &mut Endpoint, to: Address, random: &mut Random) -> Done {
    let mut buffer = me.buffer(MILL_BUFFER_BYTES, Access::Read)?;
    let grant = me.grant(&mut buffer, to)?;
    me.send_buffered(to, 3, &grant.number().to_le_bytes(), Some(Instant::now() + MILL_TIMEOUT))?;
    buffer.write(0, &[1; 4096])?;
    if random.below(2) == 0 {
        me.revoke(&mut buffer, grant)?;
    }
    Ok(())
}

/// By hand: one connection has many, which a program of ours never does.
fn many(connections: u64, each: u64) -> Done {
    let mut kept = Vec::new();
    let mut bound = 0;
    let mut why = String::new();
    'all: for _ in 0..connections {
        let socket = packets()?;
        for id in 1..=each {
            let answer = exchanged(&socket, &format!("{{\"op\":\"bind\",\"id\":{id}}}"))?;
            if !answer.contains("\"bound\"") {
                why = answer;
                kept.push(socket);
                break 'all;
            }
            bound += 1;
        }
        kept.push(socket);
    }
    say(&format!("bound {bound} {why}"));
    until_the_input_ends();
    Ok(())
}

fn packets() -> Result<std::os::fd::OwnedFd, Box<dyn Error>> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(session::Control::path())?)?;
    Ok(socket)
}

/// The next packet after what is sent; descriptors that come along are closed by the kernel.
fn exchanged(socket: &std::os::fd::OwnedFd, packet: &str) -> Result<String, Box<dyn Error>> {
    use rustix::net::{RecvFlags, SendFlags, recv, send};
    send(socket, packet.as_bytes(), SendFlags::NOSIGNAL)?;
    let mut answer = vec![0; 64 << 10];
    let (length, _) = recv(socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(length);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn raw() -> Done {
    let socket = packets()?;
    for line in std::io::stdin().lock().lines() {
        say(&exchanged(&socket, &line?)?);
    }
    Ok(())
}
