//! A commit is short, if the machine lets it be: for as long as it takes, its thread comes before
//! whoever is not real-time, and before jobs.

use sys::schedule::Class;

/// Over jobs, under the threads that rule them.
pub const CONTROL_PRIORITY: u32 = 20;

/// The calling thread is real-time until this is dropped, where it may be.
#[derive(Debug)]
pub struct Boost(Option<Class>);

impl Boost {
    /// From now on.
    #[must_use]
    pub fn begin() -> Self {
        let before = sys::schedule::class(0).ok().filter(|class| !class.is_real_time());
        let boosted = before.is_some()
            && sys::schedule::set_class(0, Class::Fifo { priority: CONTROL_PRIORITY }).is_ok();
        Self(before.filter(|_| boosted))
    }
}

impl Drop for Boost {
    fn drop(&mut self) {
        if let Some(before) = self.0
            && let Err(error) = sys::schedule::set_class(0, before)
        {
            tracing::error!(%error, "a thread could not go back to its class");
        }
    }
}
