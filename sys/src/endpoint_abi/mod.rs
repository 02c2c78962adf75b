//! Endpoints for programs in other languages: the C functions of `include/tombolo/endpoint.h`.
//!
//! As [`crate::channel_abi`], which has the handles, the errors and the options of both: the
//! header's contract is kept here, and the work is an [`Endpoints`]'s.

mod export;
mod movement;
mod names;
mod structs;

pub use export::*;
pub use movement::*;
pub use structs::{Access, Granted, Message, Peer};

use crate::channel_abi::{Handle, Options, Outcome, Patience};
use std::ffi::CStr;

/// Where an endpoint is: its slot, and above 32 bits its generation. 0 is nobody.
pub type Address = u64;

/// A message that goes out: its meaning and its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// The sender's word for the receiver.
    pub tag: u32,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Where in whose buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the grant, as the program says.
    pub grant: i64,
    /// Bytes from its start.
    pub offset: u64,
}

/// Where in one's own buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnPlace {
    /// The buffer, as the program says.
    pub buffer: Handle,
    /// Bytes from its start.
    pub offset: u64,
}

/// The implementation behind the C functions. Called from any thread, also from several at once
/// with the same handle, and with handles and addresses that never existed: that is an error, and
/// nothing else.
pub trait Endpoints: Sync {
    /// `tombolo_endpoint_bind`.
    fn bind(&self, name: Option<&CStr>, options: &Options) -> Outcome<Handle>;
    /// `tombolo_endpoint_pair`.
    fn endpoint_pair(&self, options: &Options) -> Outcome<[Handle; 2]>;
    /// `tombolo_endpoint_unbind`.
    fn unbind(&self, endpoint: Handle) -> Outcome<()>;
    /// `tombolo_endpoint_address`.
    fn address(&self, endpoint: Handle) -> Outcome<Address>;
    /// `tombolo_endpoint_name`.
    fn name(&self, endpoint: Handle) -> Outcome<String>;
    /// `tombolo_endpoint_find`.
    fn find(&self, endpoint: Handle, whom: &CStr, patience: Patience) -> Outcome<Address>;
    /// `tombolo_endpoint_wait`.
    fn wait_for_bind(&self, endpoint: Handle, whom: &CStr, patience: Patience) -> Outcome<Address>;
    /// `tombolo_endpoint_send`.
    fn send(&self, endpoint: Handle, to: Address, message: Outgoing<'_>, patience: Patience) -> Outcome<()>;
    /// `tombolo_endpoint_send_buffered`.
    fn send_buffered(
        &self,
        endpoint: Handle,
        to: Address,
        message: Outgoing<'_>,
        patience: Patience,
    ) -> Outcome<()>;
    /// `tombolo_endpoint_flush`.
    fn flush_held(&self, endpoint: Handle) -> Outcome<()>;
    /// `tombolo_endpoint_call`: the reply's bytes are in `into`, as many as the message says.
    fn call(
        &self,
        endpoint: Handle,
        to: Address,
        message: Outgoing<'_>,
        into: &mut [u8],
        patience: Patience,
    ) -> Outcome<Message>;
    /// `tombolo_endpoint_ask`, as `call`.
    fn ask(
        &self,
        endpoint: Handle,
        name: &CStr,
        message: Outgoing<'_>,
        into: &mut [u8],
        patience: Patience,
    ) -> Outcome<Message>;
    /// `tombolo_endpoint_bind_backup`.
    fn bind_backup(&self, name: &CStr, options: &Options) -> Outcome<Handle>;
    /// `tombolo_endpoint_take_over`: the endpoint.
    fn take_over(&self, backup: Handle, patience: Patience) -> Outcome<Handle>;
    /// `tombolo_endpoint_promote`.
    fn promote(&self, backup: Handle) -> Outcome<()>;
    /// `tombolo_endpoint_reply_with_state`.
    fn reply_with_state(
        &self,
        endpoint: Handle,
        request: u64,
        message: Outgoing<'_>,
        state: &[u8],
    ) -> Outcome<()>;
    /// `tombolo_endpoint_keep_state`.
    fn keep_state(&self, endpoint: Handle, state: &[u8]) -> Outcome<()>;
    /// `tombolo_endpoint_state`, of an endpoint or a backup: how many bytes it has, of which as
    /// many as fit are in `into`.
    fn state(&self, whose: Handle, into: &mut [u8]) -> Outcome<usize>;
    /// `tombolo_endpoint_tell`.
    fn tell(&self, endpoint: Handle, name: &CStr, message: Outgoing<'_>, patience: Patience) -> Outcome<()>;
    /// `tombolo_endpoint_migrate_start`.
    fn migrate_start(&self, endpoint: Handle, domain: &CStr) -> Outcome<()>;
    /// `tombolo_endpoint_migrate_commit`.
    fn migrate_commit(&self, endpoint: Handle) -> Outcome<()>;
    /// `tombolo_endpoint_migrate_roll_back`.
    fn migrate_roll_back(&self, endpoint: Handle) -> Outcome<()>;
    /// `tombolo_endpoint_give_up`; whether it had been received.
    fn give_up(&self, endpoint: Handle) -> Outcome<bool>;
    /// `tombolo_endpoint_receive`: what came is in `into`, and described in `message`, also where
    /// it is too long for `into`.
    fn receive(
        &self,
        endpoint: Handle,
        from: Address,
        into: &mut [u8],
        message: &mut Message,
        patience: Patience,
    ) -> Outcome<usize>;
    /// `tombolo_endpoint_reply`.
    fn reply(&self, endpoint: Handle, request: u64, message: Outgoing<'_>) -> Outcome<()>;
    /// `tombolo_endpoint_relay`.
    fn relay(&self, endpoint: Handle, request: u64, to: Address, message: Outgoing<'_>) -> Outcome<()>;
    /// `tombolo_endpoint_notify`.
    fn notify(&self, endpoint: Handle, to: Address, bits: u64) -> Outcome<()>;
    /// `tombolo_endpoint_max_message`.
    fn max_message_to(&self, endpoint: Handle, to: Address) -> Outcome<usize>;
    /// `tombolo_endpoint_peers`.
    fn peers(&self, endpoint: Handle) -> Outcome<Vec<Peer>>;
    /// `tombolo_endpoint_peer`.
    fn peer_at(&self, endpoint: Handle, address: Address) -> Outcome<Peer>;
    /// `tombolo_endpoint_buffer`.
    fn buffer(&self, endpoint: Handle, bytes: usize, access: Access) -> Outcome<Handle>;
    /// `tombolo_buffer_read`.
    fn buffer_read(&self, buffer: Handle, offset: u64, into: &mut [u8]) -> Outcome<()>;
    /// `tombolo_buffer_write`.
    fn buffer_write(&self, buffer: Handle, offset: u64, from: &[u8]) -> Outcome<()>;
    /// `tombolo_endpoint_grant`.
    fn grant(&self, endpoint: Handle, buffer: Handle, to: Address) -> Outcome<i64>;
    /// `tombolo_endpoint_revoke`.
    fn revoke(&self, endpoint: Handle, buffer: Handle, grant: i64) -> Outcome<()>;
    /// `tombolo_endpoint_granted`.
    fn granted(&self, endpoint: Handle, grant: i64, patience: Patience) -> Outcome<Granted>;
    /// `tombolo_endpoint_copy_in`.
    fn copy_in(&self, endpoint: Handle, from: Place, into: &mut [u8], patience: Patience) -> Outcome<()>;
    /// `tombolo_endpoint_copy_out`.
    fn copy_out(&self, endpoint: Handle, from: &[u8], to: Place, patience: Patience) -> Outcome<()>;
    /// `tombolo_endpoint_copy`.
    fn copy(&self, endpoint: Handle, from: Place, to: Place, length: u64, patience: Patience) -> Outcome<()>;
    /// `tombolo_endpoint_copy_to_own`.
    fn copy_to_own(
        &self,
        endpoint: Handle,
        from: Place,
        to: OwnPlace,
        length: u64,
        patience: Patience,
    ) -> Outcome<()>;
    /// `tombolo_endpoint_copy_from_own`.
    fn copy_from_own(
        &self,
        endpoint: Handle,
        from: OwnPlace,
        to: Place,
        length: u64,
        patience: Patience,
    ) -> Outcome<()>;
}
