//! The chain continues, nothing is lost, and no caller stops it.

mod beside;
mod crowd;
mod finality;
mod log_damage;
mod stop;
mod versions;

use crate::{Setting, figure::Report};

/// Measures all figures of the topic.
pub fn measure(setting: &Setting, report: &mut Report) {
    beside::measure(setting, report);
    crowd::measure(setting, report);
    finality::measure(setting, report);
    log_damage::measure(setting, report);
    stop::measure(setting, report);
    versions::measure(setting, report);
}
