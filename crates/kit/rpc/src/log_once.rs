use parking_lot::Mutex;
use std::collections::VecDeque;

/// Number of entries remembered.
const SUBJECTS_MAX: usize = 64;

/// Record of subjects already logged, so that a message is not repeated with each attempt. When it
/// is full, the oldest entry is forgotten.
#[derive(Debug)]
pub struct LogOnce<T>(Mutex<VecDeque<T>>);

impl<T> Default for LogOnce<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: PartialEq> LogOnce<T> {
    /// Records `subject` and returns whether this is the first time.
    pub fn is_new(&self, subject: T) -> bool {
        let mut logged = self.0.lock();
        if logged.contains(&subject) {
            return false;
        }
        if logged.len() >= SUBJECTS_MAX {
            logged.pop_front();
        }
        logged.push_back(subject);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_named_once_until_too_many_came_since() {
        let logged = LogOnce::default();
        assert!(logged.is_new(0) && !logged.is_new(0));
        assert!((1..SUBJECTS_MAX).all(|subject| logged.is_new(subject)));
        assert!(!logged.is_new(0));
        assert!(logged.is_new(SUBJECTS_MAX) && logged.is_new(0), "the oldest gave way");
        assert!(!logged.is_new(SUBJECTS_MAX));
    }
}
