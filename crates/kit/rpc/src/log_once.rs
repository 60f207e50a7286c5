use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

/// Number of entries remembered.
const KEPT: usize = 64;

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
    /// Records `who` and returns whether this is the first time.
    pub fn is_new(&self, who: T) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.contains(&who) {
            return false;
        }
        if told.len() >= KEPT {
            told.pop_front();
        }
        told.push_back(who);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_named_once_until_too_many_came_since() {
        let told = LogOnce::default();
        assert!(told.is_new(0) && !told.is_new(0));
        assert!((1..KEPT).all(|who| told.is_new(who)));
        assert!(!told.is_new(0));
        assert!(told.is_new(KEPT) && told.is_new(0), "the oldest gave way");
        assert!(!told.is_new(KEPT));
    }
}
