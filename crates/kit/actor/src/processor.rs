//! Finding the processor that a thread runs on, and keeping another thread off it.
//!
//! Linux wakes a thread near the thread that wakes it. If all processors are busy, it chooses the
//! least busy one, which is that of a thread that works alone. The woken thread waits there, up to
//! a tick of 4 ms, even if another processor becomes idle meanwhile.

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::sync::{Mutex, PoisonError};

/// Returns the processor that the calling thread runs on at this moment; `None` if the system does
/// not tell.
#[must_use]
pub fn processor() -> Option<usize> {
    #[cfg(target_os = "linux")]
    return Some(sched_getcpu());
    #[cfg(not(target_os = "linux"))]
    None
}

/// Handle to a thread, for other threads that keep it off their processors. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CpuAffinity {
    #[cfg(target_os = "linux")]
    thread: Arc<Mutex<Option<BoundThread>>>,
    #[cfg(not(target_os = "linux"))]
    thread: Arc<()>,
}

/// Guard of a taken [`CpuAffinity`]; releases the thread when it is dropped.
#[derive(Debug)]
pub struct AffinityGuard(CpuAffinity);

#[cfg(target_os = "linux")]
#[derive(Debug)]
struct BoundThread {
    thread: Pid,
    /// Processors that the thread may use by itself, and those that it may use now, once they
    /// differ.
    sets: Option<(CpuSet, CpuSet)>,
}

impl CpuAffinity {
    /// Makes this the affinity of the calling thread until the returned guard is dropped.
    #[must_use]
    pub fn take(&self) -> AffinityGuard {
        #[cfg(target_os = "linux")]
        {
            *self.lock() = Some(BoundThread { thread: gettid(), sets: None });
        }
        AffinityGuard(self.clone())
    }

    /// Moves the thread to any other processor that it may run on. Has no effect if there is no
    /// other. Takes some microseconds.
    pub fn avoid_cpu(&self, processor: usize) {
        #[cfg(target_os = "linux")]
        if let Some(thread) = &mut *self.lock() {
            thread.avoid_cpu(processor);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = processor;
    }

    /// Lets the thread run on all its processors again, until it is kept off one again.
    pub fn release(&self) {
        #[cfg(target_os = "linux")]
        if let Some(thread) = &mut *self.lock() {
            thread.release();
        }
    }

    #[cfg(target_os = "linux")]
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<BoundThread>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        // Another thread may get the same thread id.
        #[cfg(target_os = "linux")]
        self.0.lock().take();
    }
}

#[cfg(target_os = "linux")]
impl BoundThread {
    fn avoid_cpu(&mut self, processor: usize) {
        let Ok(now) = sched_getaffinity(Some(self.thread)) else { return };
        // A set that other code has chosen meanwhile is kept.
        let own = self.sets.filter(|(_, set)| *set == now).map_or(now, |(own, _)| own);
        let mut left = own;
        if processor < CpuSet::MAX_CPU {
            left.unset(processor);
        }
        if left.count() == 0 {
            left = own;
        }
        if left == now || sched_setaffinity(Some(self.thread), &left).is_ok() {
            self.sets = Some((own, left));
        }
    }

    fn release(&mut self) {
        let Some((own, left)) = self.sets.take() else { return };
        if sched_getaffinity(Some(self.thread)).is_ok_and(|now| now == left) {
            // The thread may run again on all its processors.
            let _ = sched_setaffinity(Some(self.thread), &own);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{sync::mpsc::channel, thread};

    fn may_run_on() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
    }

    fn run_on(processors: &[usize]) {
        let mut set = CpuSet::new();
        processors.iter().for_each(|&processor| set.set(processor));
        sched_setaffinity(None, &set).unwrap();
    }

    // Each test has a thread of its own, so these calls change no other test's processors.

    #[test]
    fn a_thread_leaves_one_processor_and_gets_it_back() {
        let all = may_run_on();
        let seat = CpuAffinity::default();
        let _taken = seat.take();
        for &off in &all {
            seat.avoid_cpu(off);
            if all.len() > 1 {
                let others: Vec<_> = all.iter().copied().filter(|&at| at != off).collect();
                assert_eq!(may_run_on(), others);
                assert_ne!(processor(), Some(off), "it is moved at once");
            } else {
                assert_eq!(may_run_on(), all, "there is no other one");
            }
        }
        seat.release();
        assert_eq!(may_run_on(), all);
        seat.avoid_cpu(CpuSet::MAX_CPU + 7);
        assert_eq!(may_run_on(), all, "there is no such processor");
    }

    #[test]
    fn what_others_set_meanwhile_holds() {
        let all = may_run_on();
        let [first, second, ..] = all[..] else { return };
        let seat = CpuAffinity::default();
        let _taken = seat.take();
        seat.avoid_cpu(first);
        run_on(&[first]);
        seat.avoid_cpu(second);
        assert_eq!(may_run_on(), [first]);
        seat.avoid_cpu(first);
        assert_eq!(may_run_on(), [first], "it may run nowhere else");
        run_on(&[second]);
        seat.release();
        assert_eq!(may_run_on(), [second]);
        run_on(&all);
        seat.avoid_cpu(second);
        assert!(!may_run_on().contains(&second));
    }

    #[test]
    fn another_thread_is_moved_and_left_alone_once_it_has_ended() {
        let all = may_run_on();
        let [first, ..] = all[..] else { return };
        let seat = CpuAffinity::default();
        seat.avoid_cpu(first);
        assert_eq!(may_run_on(), all, "the caller is not meant");
        let ((ready, thread), (go, wait)) = (channel(), channel::<()>());
        let other = thread::spawn({
            let seat = seat.clone();
            move || {
                let _taken = seat.take();
                ready.send(()).unwrap();
                wait.recv().unwrap();
                may_run_on()
            }
        });
        thread.recv().unwrap();
        seat.avoid_cpu(first);
        go.send(()).unwrap();
        let its = other.join().unwrap();
        assert_eq!(its.contains(&first), all.len() == 1);
        seat.avoid_cpu(first);
        assert_eq!(may_run_on(), all);
    }
}
