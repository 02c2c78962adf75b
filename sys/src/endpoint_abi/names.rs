//! The C names of the functions of [`super`].

/// Exports the functions of `include/tombolo/endpoint.h` from the library that expands this, done
/// by a `static` that implements [`Endpoints`](crate::endpoint_abi::Endpoints). To be expanded
/// once, in a `cdylib`.
#[macro_export]
macro_rules! export_endpoints {
    ($endpoints:path) => {
        use $crate::channel_abi::{Handle as Held, Options as Wishes, libc as ctypes};
        use $crate::endpoint_abi as abi;

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_bind(
            name: *const ctypes::c_char,
            options: *const Wishes,
        ) -> Held {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::bind(&$endpoints, name, options) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_pair(
            options: *const Wishes,
            ends: *mut Held,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::pair(&$endpoints, options, ends) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_unbind(endpoint: Held) -> ctypes::c_int {
            abi::unbind(&$endpoints, endpoint)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_address(endpoint: Held) -> abi::Address {
            abi::address(&$endpoints, endpoint)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_name(
            endpoint: Held,
            text: *mut ctypes::c_char,
            size: ctypes::size_t,
        ) -> ctypes::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::name(&$endpoints, endpoint, text, size) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_find(
            endpoint: Held,
            whom: *const ctypes::c_char,
            timeout_ns: i64,
        ) -> abi::Address {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::find(&$endpoints, endpoint, whom, timeout_ns) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_wait(
            endpoint: Held,
            whom: *const ctypes::c_char,
            timeout_ns: i64,
        ) -> abi::Address {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::wait(&$endpoints, endpoint, whom, timeout_ns) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_send(
            endpoint: Held,
            to: abi::Address,
            tag: u32,
            bytes: *const ctypes::c_void,
            length: ctypes::size_t,
            timeout_ns: i64,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::send(&$endpoints, endpoint, to, tag, bytes, length, timeout_ns) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_send_buffered(
            endpoint: Held,
            to: abi::Address,
            tag: u32,
            bytes: *const ctypes::c_void,
            length: ctypes::size_t,
            timeout_ns: i64,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::send_buffered(&$endpoints, endpoint, to, tag, bytes, length, timeout_ns) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_flush(endpoint: Held) -> ctypes::c_int {
            abi::flush(&$endpoints, endpoint)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the header has them")]
        pub unsafe extern "C" fn tombolo_endpoint_call(
            endpoint: Held,
            to: abi::Address,
            tag: u32,
            bytes: *const ctypes::c_void,
            length: ctypes::size_t,
            buffer: *mut ctypes::c_void,
            size: ctypes::size_t,
            reply: *mut abi::Message,
            timeout_ns: i64,
        ) -> ctypes::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe {
                abi::call(&$endpoints, endpoint, to, tag, bytes, length, buffer, size, reply, timeout_ns)
            }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the header has them")]
        pub unsafe extern "C" fn tombolo_endpoint_ask(
            endpoint: Held,
            name: *const ctypes::c_char,
            tag: u32,
            bytes: *const ctypes::c_void,
            length: ctypes::size_t,
            buffer: *mut ctypes::c_void,
            size: ctypes::size_t,
            reply: *mut abi::Message,
            timeout_ns: i64,
        ) -> ctypes::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe {
                abi::ask(&$endpoints, endpoint, name, tag, bytes, length, buffer, size, reply, timeout_ns)
            }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_bind_backup(
            name: *const ctypes::c_char,
            options: *const Wishes,
        ) -> Held {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::bind_backup(&$endpoints, name, options) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_take_over(backup: Held, timeout_ns: i64) -> Held {
            abi::take_over(&$endpoints, backup, timeout_ns)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_promote(backup: Held) -> ctypes::c_int {
            abi::promote(&$endpoints, backup)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_reply_with_state(
            endpoint: Held,
            request: u64,
            tag: u32,
            bytes: *const ctypes::c_void,
            length: ctypes::size_t,
            state: *const ctypes::c_void,
            state_length: ctypes::size_t,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe {
                abi::reply_with_state(&$endpoints, endpoint, request, tag, bytes, length, state, state_length)
            }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_keep_state(
            endpoint: Held,
            state: *const ctypes::c_void,
            length: ctypes::size_t,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::keep_state(&$endpoints, endpoint, state, length) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_state(
            whose: Held,
            buffer: *mut ctypes::c_void,
            size: ctypes::size_t,
        ) -> ctypes::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::state(&$endpoints, whose, buffer, size) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_tell(
            endpoint: Held,
            name: *const ctypes::c_char,
            tag: u32,
            bytes: *const ctypes::c_void,
            length: ctypes::size_t,
            timeout_ns: i64,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::tell(&$endpoints, endpoint, name, tag, bytes, length, timeout_ns) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_migrate_start(
            endpoint: Held,
            domain: *const ctypes::c_char,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::migrate_start(&$endpoints, endpoint, domain) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_migrate_commit(endpoint: Held) -> ctypes::c_int {
            abi::migrate_commit(&$endpoints, endpoint)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_migrate_roll_back(endpoint: Held) -> ctypes::c_int {
            abi::migrate_roll_back(&$endpoints, endpoint)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_give_up(endpoint: Held) -> ctypes::c_int {
            abi::give_up(&$endpoints, endpoint)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_receive(
            endpoint: Held,
            from: abi::Address,
            buffer: *mut ctypes::c_void,
            size: ctypes::size_t,
            message: *mut abi::Message,
            timeout_ns: i64,
        ) -> ctypes::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::receive(&$endpoints, endpoint, from, buffer, size, message, timeout_ns) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_reply(
            endpoint: Held,
            request: u64,
            tag: u32,
            bytes: *const ctypes::c_void,
            length: ctypes::size_t,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::reply(&$endpoints, endpoint, request, tag, bytes, length) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_relay(
            endpoint: Held,
            request: u64,
            to: abi::Address,
            tag: u32,
            bytes: *const ctypes::c_void,
            length: ctypes::size_t,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::relay(&$endpoints, endpoint, request, to, tag, bytes, length) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_notify(
            endpoint: Held,
            to: abi::Address,
            bits: u64,
        ) -> ctypes::c_int {
            abi::notify(&$endpoints, endpoint, to, bits)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_max_message(endpoint: Held, to: abi::Address) -> ctypes::ssize_t {
            abi::max_message(&$endpoints, endpoint, to)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_peers(
            endpoint: Held,
            peers: *mut abi::Peer,
            count: ctypes::size_t,
        ) -> ctypes::ssize_t {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::peers(&$endpoints, endpoint, peers, count) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_peer(
            endpoint: Held,
            address: abi::Address,
            peer: *mut abi::Peer,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::peer(&$endpoints, endpoint, address, peer) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_buffer(
            endpoint: Held,
            bytes: ctypes::size_t,
            access: ctypes::c_int,
        ) -> Held {
            abi::buffer(&$endpoints, endpoint, bytes, access)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_grant(endpoint: Held, buffer: Held, to: abi::Address) -> i64 {
            abi::grant(&$endpoints, endpoint, buffer, to)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_revoke(endpoint: Held, buffer: Held, grant: i64) -> ctypes::c_int {
            abi::revoke(&$endpoints, endpoint, buffer, grant)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_granted(
            endpoint: Held,
            grant: i64,
            granted: *mut abi::Granted,
            timeout_ns: i64,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::granted(&$endpoints, endpoint, grant, granted, timeout_ns) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_copy_in(
            endpoint: Held,
            from: i64,
            offset: u64,
            into: *mut ctypes::c_void,
            length: ctypes::size_t,
            timeout_ns: i64,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::copy_in(&$endpoints, endpoint, from, offset, into, length, timeout_ns) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_endpoint_copy_out(
            endpoint: Held,
            from: *const ctypes::c_void,
            length: ctypes::size_t,
            to: i64,
            offset: u64,
            timeout_ns: i64,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::copy_out(&$endpoints, endpoint, from, length, to, offset, timeout_ns) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_copy(
            endpoint: Held,
            from: i64,
            from_offset: u64,
            to: i64,
            to_offset: u64,
            length: u64,
            timeout_ns: i64,
        ) -> ctypes::c_int {
            abi::copy(&$endpoints, endpoint, from, from_offset, to, to_offset, length, timeout_ns)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_copy_to_own(
            endpoint: Held,
            from: i64,
            from_offset: u64,
            buffer: Held,
            offset: u64,
            length: u64,
            timeout_ns: i64,
        ) -> ctypes::c_int {
            abi::copy_to_own(&$endpoints, endpoint, from, from_offset, buffer, offset, length, timeout_ns)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_copy_from_own(
            endpoint: Held,
            buffer: Held,
            offset: u64,
            to: i64,
            to_offset: u64,
            length: u64,
            timeout_ns: i64,
        ) -> ctypes::c_int {
            abi::copy_from_own(&$endpoints, endpoint, buffer, offset, to, to_offset, length, timeout_ns)
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_buffer_read(
            buffer: Held,
            offset: u64,
            into: *mut ctypes::c_void,
            length: ctypes::size_t,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::buffer_read(&$endpoints, buffer, offset, into, length) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_buffer_write(
            buffer: Held,
            offset: u64,
            from: *const ctypes::c_void,
            length: ctypes::size_t,
        ) -> ctypes::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::buffer_write(&$endpoints, buffer, offset, from, length) }
        }

        /// See `include/tombolo/endpoint.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_endpoint_descriptor(endpoint: Held) -> ctypes::c_int {
            // 1: TOMBOLO_READING.
            $crate::channel_abi::poll_descriptor(&$endpoints, endpoint, 1)
        }
    };
}
