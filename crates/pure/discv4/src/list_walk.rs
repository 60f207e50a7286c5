use crate::{
    Enr,
    node_list::{EntryName, ListEntry, ListError, ListRoot, ListUrl},
};
use rand::{Rng, RngCore};
use std::collections::{HashSet, VecDeque};

/// Maximum number of lists followed, both given and linked.
const LISTS_MAX: usize = 8;
/// Maximum number of entries requested from one list.
const ENTRIES_MAX: usize = 1 << 16;
/// Maximum number of entries of one list that are known by name but not requested yet.
const PENDING_MAX: usize = 1 << 13;

/// Walks node lists in random order, with one DNS question after another. Many nodes with the same
/// list therefore begin with different entries. No I/O: the caller asks DNS. The walk is bounded
/// whatever the lists contain: eight lists, with 65,536 entries each.
#[derive(Debug)]
pub struct ListWalk {
    lists: Vec<List>,
    /// Positions of the lists in the order of their turns; every list gets its turn.
    turns: VecDeque<usize>,
}

#[derive(Debug)]
struct List {
    url: ListUrl,
    seq: Option<u64>,
    top: Option<(EntryName, EntryName)>,
    /// Whether the root was requested in this walk.
    begun: bool,
    pending: Vec<EntryName>,
    seen: HashSet<EntryName>,
}

/// Question to DNS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListQuestion {
    list: usize,
    /// Name of the entry, `None` for the root.
    name: Option<EntryName>,
    /// Domain whose TXT records are wanted.
    pub domain: String,
}

impl ListWalk {
    /// Creates a walk over these lists.
    pub fn new(urls: impl IntoIterator<Item = ListUrl>) -> Self {
        let mut walk = Self { lists: Vec::new(), turns: VecDeque::new() };
        urls.into_iter().for_each(|url| walk.add(url));
        walk
    }

    fn add(&mut self, url: ListUrl) {
        if self.lists.len() < LISTS_MAX && self.lists.iter().all(|list| list.url != url) {
            self.turns.push_back(self.lists.len());
            let (pending, seen) = (Vec::new(), HashSet::new());
            self.lists.push(List { url, seq: None, top: None, begun: false, pending, seen });
        }
    }

    /// Requests the roots again: the walk then covers new entries and skips known ones. Call it
    /// rarely, and only when [`Self::next`] has nothing left.
    pub fn restart(&mut self) {
        self.lists.iter_mut().for_each(|list| list.begun = false);
    }

    /// Returns the next question, `None` when all entries have been requested.
    pub fn next(&mut self, rng: &mut dyn RngCore) -> Option<ListQuestion> {
        for _ in 0..self.turns.len() {
            self.turns.rotate_left(1);
            let index = *self.turns.back()?;
            let list = &mut self.lists[index];
            if !list.begun {
                list.begun = true;
                let domain = list.url.domain().to_owned();
                return Some(ListQuestion { list: index, name: None, domain });
            }
            if !list.pending.is_empty() {
                let name = list.pending.swap_remove(rng.random_range(0..list.pending.len()));
                let domain = name.domain(&list.url);
                return Some(ListQuestion { list: index, name: Some(name), domain });
            }
        }
        None
    }

    /// Processes the TXT records at the question's domain, in any order. Returns the node that they
    /// contain, if any.
    ///
    /// # Errors
    /// [`ListError`] when none of the records is valid there. The walk does not repeat that
    /// question.
    pub fn answer(
        &mut self,
        question: &ListQuestion,
        texts: &[impl AsRef<str>],
    ) -> Result<Option<Enr>, ListError> {
        let texts = texts.iter().map(AsRef::as_ref);
        let Some(list) = self.lists.get_mut(question.list) else { return Ok(None) };
        let Some(name) = &question.name else {
            let root = first_ok(texts, |text| ListRoot::parse(text, &list.url))?;
            list.take_root(root);
            return Ok(None);
        };
        match first_ok(texts, |text| ListEntry::parse(text, name))? {
            ListEntry::Node(enr) => return Ok(Some(enr)),
            ListEntry::Branch(names) => names.into_iter().for_each(|name| list.want(name)),
            ListEntry::Link(url) => self.add(url),
        }
        Ok(None)
    }
}

impl List {
    fn take_root(&mut self, root: ListRoot) {
        let top = (root.nodes, root.links);
        // A root with a lower sequence number is an outdated copy.
        if self.seq.is_some_and(|seq| root.seq < seq) || self.top.as_ref() == Some(&top) {
            return;
        }
        self.seq = Some(root.seq);
        self.pending.clear();
        if self.seen.len() >= ENTRIES_MAX {
            self.seen.clear();
        }
        // A subtree that did not change keeps its name, so known entries need no second request.
        self.want(top.1.clone());
        self.want(top.0.clone());
        self.top = Some(top);
    }

    fn want(&mut self, name: EntryName) {
        let room = self.pending.len() < PENDING_MAX && self.seen.len() < ENTRIES_MAX;
        if room && self.seen.insert(name.clone()) {
            self.pending.push(name);
        }
    }
}

/// Returns the first text that parses, else the error of the first text of the right kind.
fn first_ok<'a, T>(
    texts: impl Iterator<Item = &'a str>,
    read: impl Fn(&str) -> Result<T, ListError>,
) -> Result<T, ListError> {
    let mut wrong = ListError::Unknown;
    for text in texts {
        match read(text) {
            Ok(value) => return Ok(value),
            Err(error) if wrong == ListError::Unknown => wrong = error,
            Err(_) => {}
        }
    }
    Err(wrong)
}
