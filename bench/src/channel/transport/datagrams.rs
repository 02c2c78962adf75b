//! The means that lose messages and do not send them again: UDP, and echoes of ICMP. Without
//! serialisation, connections and acknowledgements they are the ideal that middleware over a
//! network is compared with.

use super::super::meeting::Meeting;
use super::super::task::{Role, Task};
use super::Transport;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sockopt};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A message without an answer for so long is lost: a hundred times what a loaded machine takes.
const LOST_AFTER: Duration = Duration::from_millis(200);
/// The time that an answering side waits for the next question, or for the word that there is none.
const DESERTED_AFTER: Duration = Duration::from_secs(30);
/// Longest header of IP.
const IP_HEADER_BYTES: usize = 60;
/// Header of an echo (RFC 792).
const ECHO_BYTES: usize = 8;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;

/// A UDP socket that is connected to the other end.
#[derive(Debug)]
pub struct Udp {
    socket: UdpSocket,
    message: Vec<u8>,
}

/// Both ends by UDP at the follower's address.
pub fn udp(meeting: &mut Meeting, task: &Task, address: &str) -> io::Result<Udp> {
    let socket = match task.role {
        Role::Lead => {
            let (port, _) = meeting.take(0)?;
            let port: u16 = String::from_utf8_lossy(&port).parse().map_err(io::Error::other)?;
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect((address, port))?;
            let port = socket.local_addr()?.to_string();
            meeting.give::<OwnedFd>(port.as_bytes(), &[])?;
            socket.set_read_timeout(Some(LOST_AFTER))?;
            socket
        }
        Role::Follow => {
            let socket = UdpSocket::bind((address, 0))?;
            let port = socket.local_addr()?.port().to_string();
            meeting.give::<OwnedFd>(port.as_bytes(), &[])?;
            let (leader, _) = meeting.take(0)?;
            let leader: SocketAddrV4 = String::from_utf8_lossy(&leader).parse().map_err(io::Error::other)?;
            socket.connect(leader)?;
            socket.set_read_timeout(Some(DESERTED_AFTER))?;
            socket
        }
    };
    // Its own place for one more byte: a longer message is not taken for one of the right length.
    Ok(Udp { socket, message: vec![0; task.bytes + 1] })
}

impl Transport for Udp {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.socket.send(message).map(|_| ())
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        let length = self.socket.recv(&mut self.message)?;
        Ok(&self.message[..length])
    }
}

/// Echoes, asked by a raw socket; the kernel at the other end answers.
#[derive(Debug)]
pub struct Echo {
    socket: OwnedFd,
    identifier: u16,
    sequence: u16,
    packet: Vec<u8>,
}

/// The leader's end; the follower has none.
pub fn echo(task: &Task, address: &str) -> io::Result<Echo> {
    let address: Ipv4Addr = address.parse().map_err(io::Error::other)?;
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))?;
    rustix::net::connect(&socket, &SocketAddrV4::new(address, 0))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(LOST_AFTER))?;
    let packet = vec![0; IP_HEADER_BYTES + ECHO_BYTES + task.bytes];
    // Two processes with the same low half of their number are told apart by the numbers in their
    // messages.
    Ok(Echo { socket, identifier: std::process::id() as u16, sequence: 0, packet })
}

impl Transport for Echo {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut packet = Vec::with_capacity(ECHO_BYTES + message.len());
        packet.extend_from_slice(&[ECHO_REQUEST, 0, 0, 0]);
        packet.extend_from_slice(&self.identifier.to_be_bytes());
        packet.extend_from_slice(&self.sequence.to_be_bytes());
        packet.extend_from_slice(message);
        let sum = internet_checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
        rustix::net::send(&self.socket, &packet, SendFlags::empty())?;
        Ok(())
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        loop {
            let (_, length) = rustix::io::retry_on_intr(|| {
                rustix::net::recv(&self.socket, self.packet.as_mut_slice(), RecvFlags::empty())
            })?;
            let header = self.packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
            let packet = self.packet.get(header..length).unwrap_or_default();
            let is_ours = packet.first() == Some(&ECHO_REPLY)
                && packet.get(4..6) == Some(&self.identifier.to_be_bytes()[..]);
            // Who asks itself hears the question, too.
            if is_ours && packet.len() >= ECHO_BYTES {
                return Ok(&self.packet[header + ECHO_BYTES..length]);
            }
        }
    }
}

/// RFC 1071.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(u16::from_be_bytes([high, 0])),
        _ => 0,
    });
    let sum = words.fold(0_u32, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    });
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // The example of RFC 1071, section 3: the sum is ddf2.
        assert_eq!(internet_checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        let mut packet = vec![8, 0, 0, 0, 1, 2, 3];
        let sum = internet_checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(internet_checksum(&packet), 0);
    }
}
