//! The C names of the functions of [`super`].

/// Exports the functions of `include/tombolo/service.h` from the library that expands this, done by
/// a `static` that implements [`Services`](crate::service_abi::Services). To be expanded once, in a
/// `cdylib`.
#[macro_export]
macro_rules! export_services {
    ($services:path) => {
        use $crate::channel_abi::{Handle, libc as k};
        use $crate::service_abi as abi;

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_service_new(name: *const k::c_char) -> Handle {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::service_new(&$services, name) }
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_service_text(
            service: Handle,
            name: *const k::c_char,
            verb: *const k::c_char,
        ) -> k::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::service_text(&$services, service, name, verb) }
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_service_control(
            service: Handle,
            name: *const k::c_char,
            verb: *const k::c_char,
            flags: u32,
        ) -> k::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::service_control(&$services, service, name, verb, flags) }
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_service_session(
            service: Handle,
            name: *const k::c_char,
            verb: *const k::c_char,
            flags: u32,
        ) -> k::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::service_session(&$services, service, name, verb, flags) }
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_service_stream(
            service: Handle,
            name: *const k::c_char,
            verb: *const k::c_char,
            options: *const abi::StreamOptions,
        ) -> k::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::service_stream(&$services, service, name, verb, options, false) }
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_service_exchange(
            service: Handle,
            name: *const k::c_char,
            verb: *const k::c_char,
            options: *const abi::StreamOptions,
        ) -> k::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::service_stream(&$services, service, name, verb, options, true) }
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_service_start(service: Handle) -> k::c_int {
            abi::service_start(&$services, service)
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_service_next(
            service: Handle,
            call: *mut abi::Call,
            timeout_ns: i64,
        ) -> k::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::service_next(&$services, service, call, timeout_ns) }
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_service_answer(
            service: Handle,
            id: u64,
            bytes: *const k::c_void,
            length: k::size_t,
        ) -> k::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::service_answer(&$services, service, id, bytes, length) }
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_service_refuse(service: Handle, id: u64, error: k::c_int) -> k::c_int {
            abi::service_refuse(&$services, service, id, error)
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_service_is_cancelled(service: Handle, id: u64) -> k::c_int {
            abi::service_is_cancelled(&$services, service, id)
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn tombolo_service_publish(
            service: Handle,
            file: k::c_int,
            record: *const k::c_void,
            length: k::size_t,
        ) -> k::c_int {
            // SAFETY: the caller keeps the contract of the header, which is what the callee asks
            // for.
            unsafe { abi::service_publish(&$services, service, file, record, length) }
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_service_descriptor(service: Handle) -> k::c_int {
            abi::service_descriptor(&$services, service)
        }

        /// See `include/tombolo/service.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn tombolo_service_close(service: Handle) -> k::c_int {
            abi::service_close(&$services, service)
        }
    };
}
