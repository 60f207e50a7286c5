//! Connections of a listener, and the choice of one that makes room for a new one.

use crate::connection::Connection;
use crate::limits::ConnectionLimits;
use crate::refusals::{Reason, Refusals};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Open connections, except given-up ones.
pub(crate) struct Table {
    limits: Arc<ConnectionLimits>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    opened: u64,
    by_number: HashMap<u64, Arc<Connection>>,
}

impl Table {
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits: Arc::new(limits), open: Mutex::default() })
    }

    /// Returns a seat for a new connection, evicting an older one if necessary. Returns `None` if
    /// all have running requests.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr, refusals: &Refusals) -> Option<Seat> {
        let connection = Connection::new(address, self.limits.clone());
        let group = connection.group();
        let mut open = self.open.lock();
        let of_group = open.by_number.values().filter(|other| other.group() == group).count();
        let evicted = if of_group >= self.limits.address_connections_max {
            open.evict(|other| other.group() == group).then_some("the most of one address")
        } else if open.by_number.len() >= self.limits.connections_max {
            open.evict(|_| true).then_some("the most at all")
        } else {
            Some("")
        };
        let Some(limit) = evicted else {
            refusals.count(Reason::Crowded, format_args!("no room for {address}"));
            return None;
        };
        if !limit.is_empty() {
            let text = format_args!("an idle connection made room for one of {address}: {limit}");
            refusals.count(Reason::Evicted, text);
        }
        open.opened += 1;
        let number = open.opened;
        open.by_number.insert(number, connection.clone());
        Some(Seat { table: self.clone(), number, connection })
    }

    /// Evicts the oldest connection that never had a request, if there is any.
    pub(crate) fn evict_stranger(&self) -> bool {
        self.open.lock().evict(|connection| !connection.was_served())
    }
}

impl Open {
    /// Evicts one of these connections: from those of the lowest worth, the one that was idle for
    /// longest.
    fn evict(&mut self, of: impl Fn(&Connection) -> bool) -> bool {
        loop {
            let those = self.by_number.iter().filter(|(_, connection)| of(connection));
            let worth =
                those.filter_map(|(number, connection)| Some((connection.worth()?, *number)));
            let Some((_, number)) = worth.min() else { return false };
            // It may have received a request just now. The next round then skips it.
            if self.by_number.get(&number).is_some_and(|connection| connection.give_up()) {
                self.by_number.remove(&number);
                return true;
            }
        }
    }
}

/// Place of a connection in the table.
pub(crate) struct Seat {
    table: Arc<Table>,
    number: u64,
    pub(crate) connection: Arc<Connection>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.table.open.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(connections_max: usize, address_connections_max: usize) -> (Arc<Table>, Refusals) {
        let limits =
            ConnectionLimits { connections_max, address_connections_max, ..Default::default() };
        (Table::new(limits), Refusals::new("a port"))
    }

    fn is_given_up(seat: &Seat) -> bool {
        seat.connection.place().is_none()
    }

    #[test]
    fn the_longest_idle_makes_room_first_and_those_with_a_token_last() {
        let (table, refusals) = table(3, 3);
        let admit = || table.admit([127, 0, 0, 1].into(), &refusals).unwrap();
        let trusted = admit();
        trusted.connection.trust();
        let (oldest, younger) = (admit(), admit());
        let newest = admit();
        assert!(is_given_up(&oldest));
        let places = [&younger, &newest].map(|seat| seat.connection.place().unwrap());
        let _last = admit();
        assert!(is_given_up(&trusted));
        drop(places);
    }

    #[test]
    fn what_has_a_request_under_way_stays_and_the_new_one_goes() {
        let (table, refusals) = table(2, 2);
        let admit = || table.admit([127, 0, 0, 1].into(), &refusals);
        let seats = [admit().unwrap(), admit().unwrap()];
        let places = seats.each_ref().map(|seat| seat.connection.place().unwrap());
        assert!(admit().is_none() && !table.evict_stranger());
        drop(places);
        assert!(admit().is_some());
        drop(seats);
        assert!(table.open.lock().by_number.is_empty());
    }

    #[test]
    fn an_address_over_its_limit_gives_up_its_own() {
        let (table, refusals) = table(10, 2);
        let admit = |last: u8| table.admit([10, 0, 0, last].into(), &refusals).unwrap();
        let honest = admit(1);
        let greedy = [admit(2), admit(2), admit(2), admit(2)];
        let left: Vec<_> = greedy.iter().map(|seat| !is_given_up(seat)).collect();
        assert_eq!(left, [false, false, true, true]);
        assert!(!is_given_up(&honest));
    }
}
