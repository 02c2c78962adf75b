//! A lane, its socket and its clock.

use super::covered;
use super::keys::Keys;
use super::station::{LanePlace, Reach, Way};
use crate::connection::Carry;
use lane::{Broken, Heard, Lane, Seal, Take};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use sys::ethernet::bundles::place_bytes;
use sys::ethernet::{FRAMES_MAX, Room};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use wire::cover::HEAD_BYTES;
use wire::lane::FRAME_BYTES_MAX;

/// Bytes that one system call may bring.
const RECEIVE_BYTES: usize = 512 << 10;
/// Packets that one system call may bring, where each may be of 64 KiB or of one frame.
const RECEIVE_PACKETS: usize = 32;
/// System calls of one turn for what comes, before others of the runtime have theirs.
const RECEIVES_OF_A_TURN: usize = 4;
/// System calls of one turn for what goes.
const SENDS_OF_A_TURN: usize = 8;
/// Packets are no longer than what a frame carries where that is so much: of shorter ones the
/// headers would cost more than they save.
const PACKET_BYTES_MIN: usize = 4 << 10;
/// Nothing of the other side in so long ends the connection, whatever the link above takes for
/// silence.
const SILENCE: Duration = Duration::from_secs(30);

/// Takes nothing: who sends does not read.
fn nothing(_: &[u8]) -> usize {
    0
}

fn broken(broken: Broken) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, broken)
}

fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // Deprecated for types whose descriptor can change or close while it is watched. An `OwnedFd`
    // can do neither.
    #[allow(
        deprecated,
        reason = "an `OwnedFd` keeps what the unsafe constructor asks for, and `unsafe` lives in `sys`"
    )]
    AsyncFd::new(socket)
}

/// How one frame goes that has the way for itself: as it is, because IP looks at nothing of that.
struct Single {
    socket: AsyncFd<OwnedFd>,
    to: [u8; 6],
    bytes_max: usize,
    /// Frames that were lost before the last went so: with one more, none goes so for a while.
    lost: Option<u64>,
    /// How often that happened in a row, and until when none goes so.
    failed: u32,
    not_before: Instant,
}

/// Where such a frame was lost none goes so for so long, and twice as long the next time; a peer
/// that was busy is not taken for a way that drops them.
const SINGLE_AGAIN: Duration = Duration::from_millis(100);
/// It doubles so often.
const SINGLE_DOUBLINGS: u32 = 10;

/// The socket that a lane hears.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ear {
    Way,
    Single,
}

pub(super) struct Ethernet {
    // Before the place: its number is free only when nobody reads for it.
    socket: AsyncFd<OwnedFd>,
    single: Option<Single>,
    place: LanePlace,
    way: Way,
    lane: Lane,
    keys: Keys,
    room: Room,
    /// On which socket something came last, and what is in the room that nobody has heard.
    heard_by: Ear,
    looked: Option<Ear>,
    /// A state that is sealed and was not taken yet.
    state: Vec<u8>,
    begun: Instant,
    /// As it was when this side was called, or handed over or received something last: to ask the
    /// clock costs more than most calls do.
    now: Instant,
    heard_at: Instant,
    timer: Option<(u64, Pin<Box<Sleep>>)>,
    /// The connection over which the two were introduced, while it stands.
    lifeline: Option<TcpStream>,
    said_end: bool,
    /// The address that a side which has connected names.
    leads_to: Option<SocketAddr>,
}

impl Drop for Ethernet {
    fn drop(&mut self) {
        let is_over = self.lane.has_left() || self.said_end && self.lane.is_drained();
        if !is_over {
            let now_us = self.read_clock();
            self.lane.farewell(now_us, &mut self.keys, &mut self.state);
            // Who does not hear it finds out by silence.
            let _unheard = self.place.send(&mut self.way, &[&self.state]);
        }
    }
}

impl Ethernet {
    pub fn new(
        place: LanePlace,
        way: Way,
        mut lane: Lane,
        keys: Keys,
        lifeline: TcpStream,
    ) -> io::Result<Self> {
        let frame_bytes = place.station.frame_bytes().min(FRAME_BYTES_MAX);
        let room = match way {
            Way::Bare(_) => Room::new((RECEIVE_BYTES / frame_bytes).clamp(4, FRAMES_MAX), frame_bytes),
            Way::Covered(_) => Room::new(RECEIVE_PACKETS, place_bytes(HEAD_BYTES + FRAME_BYTES_MAX)),
        };
        // A registration of its own: several lanes may wait for the same socket.
        let socket = watch(place.socket(&way).try_clone_to_owned()?)?;
        lane.greet();
        let now = Instant::now();
        Ok(Self {
            socket,
            single: None,
            place,
            way,
            lane,
            keys,
            room,
            heard_by: Ear::Way,
            looked: None,
            state: Vec::new(),
            begun: now,
            now,
            heard_at: now,
            timer: None,
            lifeline: Some(lifeline),
            said_end: false,
            leads_to: None,
        })
    }

    /// Both sides hear frames that are not under the cover as well: up to so many bytes to this
    /// address.
    pub fn hears_both(mut self, to: Option<([u8; 6], usize)>) -> io::Result<Self> {
        if let Some((to, bytes_max)) = to {
            let socket = watch(self.place.bare_socket().try_clone_to_owned()?)?;
            self.single = Some(Single { socket, to, bytes_max, lost: None, failed: 0, not_before: self.now });
        }
        Ok(self)
    }

    fn now_us(&self) -> u64 {
        u64::try_from((self.now - self.begun).as_micros()).unwrap_or(u64::MAX)
    }

    fn read_clock(&mut self) -> u64 {
        self.now = Instant::now();
        self.now_us()
    }

    /// It was made to who is introduced there.
    pub fn leads_to(&mut self, address: SocketAddr) {
        self.leads_to = Some(address);
    }

    /// Waits until enough of the other side has come.
    pub async fn heard(&mut self, enough: fn(&Lane) -> bool) -> io::Result<()> {
        poll_fn(|cx| {
            if let Err(error) = self.turn(cx, &mut nothing, 0) {
                return Poll::Ready(Err(error));
            }
            if enough(&self.lane) {
                return Poll::Ready(Ok(()));
            }
            self.is_over().map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
        })
        .await
    }

    fn is_over(&self) -> Option<io::Error> {
        if self.lane.has_left() {
            return Some(io::ErrorKind::ConnectionReset.into());
        }
        if self.lane.is_cut() {
            if let Some(address) = self.leads_to {
                self.place.station.limit_to(address, Reach::Covered);
            }
            let why = "long frames don't come through any more: what is in between cuts them now";
            return Some(io::Error::other(why));
        }
        let silent = self.now - self.heard_at > SILENCE;
        silent.then(|| io::Error::new(io::ErrorKind::TimedOut, "no frame of the other node came"))
    }

    /// Takes what came, hands over what is to go, and sees to the time. Says how many bytes were
    /// taken; about `most` are enough for a turn. Whatever happens next wakes the context.
    fn turn(&mut self, cx: &mut Context<'_>, take: Take<'_>, most: usize) -> io::Result<usize> {
        self.read_clock();
        self.poll_lifeline(cx);
        let mut taken = self.lane.read_to(take);
        if let Some(ear) = self.looked.take() {
            taken += self.hear_room(ear, take)?;
            self.poll_out(cx)?;
        }
        for frame in &mut self.place.passed_on(cx.waker()) {
            taken += self.hear(frame, take)?;
        }
        for ear in [Ear::Way, Ear::Single] {
            taken += self.poll_socket(cx, ear, take, most.saturating_sub(taken))?;
        }
        self.poll_out(cx)?;
        while self.poll_time(cx) {
            let now_us = self.now_us();
            self.lane.tick(now_us);
            self.poll_out(cx)?;
        }
        Ok(taken)
    }

    fn poll_lifeline(&mut self, cx: &mut Context<'_>) {
        let Some(lifeline) = &mut self.lifeline else { return };
        let mut byte = [0; 1];
        let ended = Pin::new(lifeline).poll_read(cx, &mut ReadBuf::new(&mut byte)).is_ready();
        if ended {
            self.lifeline = None;
            let now_us = self.now_us();
            self.lane.doubt(now_us);
        }
    }

    fn hear(&mut self, frame: &mut [u8], take: Take<'_>) -> io::Result<usize> {
        let now_us = self.now_us();
        match self.lane.hear(now_us, frame, &mut self.keys, take).map_err(broken)? {
            Heard::Taken(bytes) => {
                self.heard_at = self.now;
                Ok(bytes)
            }
            Heard::Again | Heard::Strange => Ok(0),
        }
    }

    fn poll_socket(
        &mut self,
        cx: &mut Context<'_>,
        ear: Ear,
        take: Take<'_>,
        most: usize,
    ) -> io::Result<usize> {
        let mut taken = 0;
        for _ in 0..RECEIVES_OF_A_TURN {
            let socket = match (ear, &self.single) {
                (Ear::Way, _) => &self.socket,
                (Ear::Single, Some(single)) => &single.socket,
                (Ear::Single, None) => return Ok(taken),
            };
            let Poll::Ready(ready) = socket.poll_read_ready(cx) else { return Ok(taken) };
            let mut ready = ready?;
            match self.room.receive(ready.get_inner()) {
                Ok(_) => {
                    if !self.room.is_full() {
                        ready.clear_ready();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            self.read_clock();
            taken += self.hear_room(ear, take)?;
            // States go out before more is looked at: the other side may wait for them.
            self.poll_out(cx)?;
            if most > 0 && taken > most / 2 {
                break;
            }
        }
        // There may be more.
        cx.waker().wake_by_ref();
        Ok(taken)
    }

    /// Hears what came last, on this socket. Says how many bytes were taken.
    fn hear_room(&mut self, ear: Ear, take: Take<'_>) -> io::Result<usize> {
        let now_us = self.now_us();
        let Self { room, place, lane, keys, .. } = self;
        let covered = ear == Ear::Way && matches!(self.way, Way::Covered(_));
        let station = covered.then(|| place.station.number());
        let (mut taken, mut heard) = (0, false);
        for came in room.frames() {
            let (bare, covered) = match station {
                None => (Some(came), None),
                Some(station) => (None, Some(covered::frames(came, station))),
            };
            for frame in bare.into_iter().chain(covered.into_iter().flatten()) {
                let Some(number) = frame.get(8..12).and_then(|bytes| bytes.first_chunk()) else { continue };
                let number = u32::from_le_bytes(*number);
                if number != place.number {
                    place.pass_on(number, frame);
                } else if let Heard::Taken(bytes) = lane.hear(now_us, frame, keys, take).map_err(broken)? {
                    heard = true;
                    taken += bytes;
                }
            }
        }
        if heard {
            (self.heard_at, self.heard_by) = (self.now, ear);
        }
        Ok(taken)
    }

    /// Sends the frame that is ready as it is, if it is the only one and may go so. False: it did
    /// not go.
    fn sends_single(&mut self) -> bool {
        let lost = self.lane.lost();
        let Some(single) = &mut self.single else { return false };
        match single.lost.take() {
            Some(before) if before == lost => single.failed = 0,
            Some(_) => {
                single.failed = (single.failed + 1).min(SINGLE_DOUBLINGS);
                single.not_before = self.now + SINGLE_AGAIN * (1 << single.failed);
            }
            None => {}
        }
        let is_good = single.not_before <= self.now && self.lane.is_single();
        let frame = self.lane.ready().next().filter(|frame| is_good && frame.len() <= single.bytes_max);
        // What does not go so goes the other way.
        let went = frame.is_some_and(|frame| self.place.send_bare(single.to, frame).is_ok());
        single.lost = went.then_some(lost);
        went
    }

    /// Hands over what is to go, as far as the socket takes it.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.poll_out_of(cx, Lane::prepare)
    }

    /// The same, of what `prepare` makes ready.
    fn poll_out_of(
        &mut self,
        cx: &mut Context<'_>,
        prepare: fn(&mut Lane, &mut dyn Seal) -> usize,
    ) -> io::Result<()> {
        for _ in 0..SENDS_OF_A_TURN {
            let now_us = self.now_us();
            if self.state.is_empty() {
                self.lane.state(now_us, &mut self.keys, &mut self.state);
            }
            let count = prepare(&mut self.lane, &mut self.keys).min(FRAMES_MAX - 1);
            let states = usize::from(!self.state.is_empty());
            if count + states == 0 {
                return Ok(());
            }
            let now_us = self.read_clock();
            if (count, states) == (1, 0) && self.sends_single() {
                self.lane.departed(now_us, 1);
                continue;
            }
            let sent = {
                let mut frames: [&[u8]; FRAMES_MAX] = [&[]; FRAMES_MAX];
                let all = [&self.state[..]].into_iter().filter(|state| !state.is_empty());
                for (place, frame) in frames.iter_mut().zip(all.chain(self.lane.ready().take(count))) {
                    *place = frame;
                }
                self.place.send(&mut self.way, frames.get(..count + states).unwrap_or_default())
            };
            match sent {
                Ok(sent) => {
                    if states > 0 && sent > 0 {
                        self.state.clear();
                    }
                    self.lane.departed(now_us, sent.saturating_sub(states));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match self.socket.poll_write_ready(cx) {
                        Poll::Ready(ready) => ready?.clear_ready(),
                        Poll::Pending => return Ok(()),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The network is full: a frame less, as if it were lost on its way.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
                    if states > 0 {
                        self.state.clear();
                    } else {
                        self.lane.departed(now_us, 1);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        // Others have their turn first.
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Whether packets are as long as what a frame carries.
    fn has_places(&self) -> bool {
        self.lane.carried_bytes() >= PACKET_BYTES_MIN
    }

    /// A turn of who sends and does not read.
    ///
    /// # Errors
    /// It is over, or the socket fails.
    fn poll_idle_turn(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.turn(cx, &mut nothing, 0)?;
        if self.lane.has_readable() {
            // Who reads has not seen that it came.
            cx.waker().wake_by_ref();
        }
        self.is_over().map_or(Ok(()), Err)
    }

    /// Ready: something was taken, nothing more comes, or it is over.
    fn poll_taken(&mut self, cx: &mut Context<'_>, take: Take<'_>, most: usize) -> Poll<io::Result<usize>> {
        let taken = self.turn(cx, take, most)?;
        if taken > 0 || self.lane.is_ended() {
            return Poll::Ready(Ok(taken));
        }
        self.is_over().map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
    }

    /// True: the time has come for something.
    fn poll_time(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(due_us) = self.lane.due_us() else { return false };
        if due_us <= self.now_us() {
            // It is looked at again when it is set again.
            self.timer = None;
            return true;
        }
        let early = self.timer.as_ref().is_some_and(|(set_us, _)| *set_us <= due_us);
        if !early {
            let at = self.begun + Duration::from_micros(due_us);
            self.timer = Some((due_us, Box::pin(tokio::time::sleep_until(at.into()))));
        }
        let fired = self.timer.as_mut().is_some_and(|(_, timer)| timer.as_mut().poll(cx).is_ready());
        if fired {
            self.timer = None;
        }
        fired
    }
}

impl Carry for Ethernet {
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut taken = self.lane.offer(bytes);
        if taken > 0 {
            // More may come soon; what is not worth a frame yet goes when nothing does.
            self.poll_out_of(cx, Lane::prepare_whole)?;
        } else {
            self.poll_idle_turn(cx)?;
            taken = self.lane.offer(bytes);
        }
        if taken > 0 { Poll::Ready(Ok(taken)) } else { Poll::Pending }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_out(cx)?;
        if self.lane.is_sent() {
            return Poll::Ready(Ok(()));
        }
        // The rest goes when the other side has said what came.
        self.poll_idle_turn(cx)?;
        if self.lane.is_sent() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let most = into.len();
        let mut room = into;
        let mut fill = |bytes: &[u8]| {
            let now = bytes.len().min(room.len());
            let (place, rest) = std::mem::take(&mut room).split_at_mut(now);
            place.copy_from_slice(bytes.split_at(now).0);
            room = rest;
            now
        };
        self.poll_taken(cx, &mut fill, most)
    }

    fn poll_hear(
        &mut self,
        cx: &mut Context<'_>,
        _scratch: &mut [u8],
        hear: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let mut all = |bytes: &[u8]| {
            hear(bytes);
            bytes.len()
        };
        self.poll_taken(cx, &mut all, usize::MAX)
    }

    fn look(&mut self) -> io::Result<bool> {
        if self.looked.is_some() {
            return Ok(true);
        }
        let socket = match (self.heard_by, &self.single) {
            (Ear::Single, Some(single)) => &single.socket,
            _ => &self.socket,
        };
        match self.room.receive(socket.get_ref()) {
            Ok(_) => {
                self.looked = Some(self.heard_by);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn packet_bytes(&self) -> usize {
        if self.has_places() { self.lane.carried_bytes() } else { usize::MAX }
    }

    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<&mut Vec<u8>>>> {
        if !self.has_places() {
            return Poll::Ready(Ok(None));
        }
        if !self.lane.has_place() {
            self.poll_idle_turn(cx)?;
            if !self.lane.has_place() {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(self.lane.place()))
    }

    fn placed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.lane.placed();
        if self.lane.has_batch() { self.poll_out(cx) } else { Ok(()) }
    }

    fn hold_little(&mut self, little: bool) {
        self.lane.hold_little(little);
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.said_end {
            self.said_end = true;
            self.lane.end();
        }
        // What comes meanwhile is not wanted.
        while self.turn(cx, &mut |bytes| bytes.len(), usize::MAX)? > 0 {}
        if self.lane.is_drained() || self.lane.has_left() {
            return Poll::Ready(Ok(()));
        }
        self.is_over().map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
    }
}
