//! Primitives of the status words under loom, which runs every order of their steps.
//!
//! loom lets a load see an older value than sequential consistency allows, unless both stores are
//! sequentially consistent. So each word begins with such a store. The status words have no other
//! orderings, and each is stored by one thread alone or changed by read-modify-write operations.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Instant,
};

/// Number of checks before the engine sleeps. Further ones are the same step again.
pub const SPINS: usize = 1;

macro_rules! words {
    ($($name:ident($value:ty)),*) => {$(
        pub struct $name(loom::sync::atomic::$name);

        impl $name {
            pub fn new(value: $value) -> Self {
                let word = loom::sync::atomic::$name::new(value);
                word.store(value, SeqCst);
                Self(word)
            }
        }

        impl Deref for $name {
            type Target = loom::sync::atomic::$name;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }
    )*};
}

words!(AtomicBool(bool), AtomicU8(u8), AtomicU32(u32), AtomicUsize(usize));

/// Mutex with the interface of parking_lot.
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// Lock of a [`Mutex`], absent only while [`Condvar::wait`] has it.
pub struct Guard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> Guard<'_, T> {
        Guard(Some(self.0.lock().unwrap()))
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap()
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().unwrap()
    }
}

/// Condition variable with the interface of parking_lot.
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub fn wait<T>(&self, guard: &mut Guard<'_, T>) {
        guard.0 = guard.0.take().map(|guard| self.0.wait(guard).unwrap());
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Sleeping thread. Its time is over when a thread of the test says so.
#[derive(Clone)]
pub struct Sleeper(Arc<(Mutex<Sleep>, Condvar)>);

#[derive(Default)]
struct Sleep {
    is_woken: bool,
    is_over: bool,
}

impl Sleeper {
    pub fn new() -> Self {
        Self(Arc::new((Mutex::new(Sleep::default()), Condvar::new())))
    }

    pub fn sleep(&self, _until: Instant) -> bool {
        let (state, changed) = &*self.0;
        let mut sleep = state.lock();
        if sleep.is_over {
            return false;
        }
        while !sleep.is_woken && !sleep.is_over {
            changed.wait(&mut sleep);
        }
        sleep.is_woken = false;
        true
    }

    pub fn wake(&self) {
        self.change(|sleep| sleep.is_woken = true);
    }

    /// Lets the time of all sleeps be over.
    pub fn end_time(&self) {
        self.change(|sleep| sleep.is_over = true);
    }

    fn change(&self, change: impl FnOnce(&mut Sleep)) {
        let (state, changed) = &*self.0;
        change(&mut state.lock());
        changed.notify_one();
    }
}
